"""`python -m bench` is `mirage`."""

from bench.cli import main

if __name__ == "__main__":
    main()
