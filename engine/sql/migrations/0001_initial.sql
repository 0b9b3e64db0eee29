-- The store's first schema. Times are Unix milliseconds, money is nano-dollars, large texts are zstd frames.

CREATE TABLE sweep (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE CHECK (length(name) > 0),
    simulated INTEGER NOT NULL CHECK (simulated IN (0, 1)),
    manifest TEXT NOT NULL CHECK (json_valid(manifest)),
    plan_hash TEXT NOT NULL,
    planned INTEGER NOT NULL DEFAULT 0 CHECK (planned IN (0, 1)),
    created_ms INTEGER NOT NULL
) STRICT;

-- One start of the program on one sweep; attempts and leases belong to a run.
CREATE TABLE run (
    id INTEGER PRIMARY KEY,
    sweep_id INTEGER NOT NULL REFERENCES sweep,
    manifest TEXT NOT NULL CHECK (json_valid(manifest)),
    pid INTEGER NOT NULL,
    started_ms INTEGER NOT NULL,
    ended_ms INTEGER,
    outcome TEXT
) STRICT;

-- One call, identified by what it asks. `sweep_id`, `stage` and `alias` say whose budget pays for it.
CREATE TABLE request (
    id INTEGER PRIMARY KEY,
    key BLOB NOT NULL UNIQUE CHECK (length(key) = 16),
    sweep_id INTEGER NOT NULL REFERENCES sweep,
    lane TEXT NOT NULL,
    provider TEXT NOT NULL,
    model TEXT NOT NULL,
    alias TEXT NOT NULL,
    stage TEXT NOT NULL,
    priority INTEGER NOT NULL,
    size INTEGER NOT NULL CHECK (size >= 0),
    messages INTEGER NOT NULL CHECK (messages >= 0),
    state TEXT NOT NULL DEFAULT 'planned' CHECK (state IN ('planned', 'sent', 'in_doubt', 'settled', 'failed')),
    attempts INTEGER NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    failures INTEGER NOT NULL DEFAULT 0,
    throttles INTEGER NOT NULL DEFAULT 0,
    error_class TEXT,
    error TEXT,
    owner INTEGER REFERENCES run,
    lease_ms INTEGER,
    CHECK ((owner IS NULL) = (lease_ms IS NULL)),
    CHECK (state <> 'failed' OR error_class IS NOT NULL)
) STRICT;
CREATE INDEX request_ready ON request (sweep_id, lane, priority, id) WHERE state = 'planned' AND owner IS NULL;
CREATE INDEX request_leased ON request (owner, lease_ms) WHERE owner IS NOT NULL;

CREATE TABLE prompt (
    request_id INTEGER PRIMARY KEY REFERENCES request,
    body BLOB NOT NULL
) STRICT;

-- One sending of a request. `open` is on the wire; `assumed` may have been billed although no answer came.
CREATE TABLE attempt (
    request_id INTEGER NOT NULL REFERENCES request,
    number INTEGER NOT NULL CHECK (number >= 1),
    run_id INTEGER NOT NULL REFERENCES run,
    sweep_id INTEGER NOT NULL REFERENCES sweep,
    provider TEXT NOT NULL,
    alias TEXT NOT NULL,
    stage TEXT NOT NULL,
    outcome TEXT NOT NULL DEFAULT 'open' CHECK (outcome IN ('open', 'in_doubt', 'completed', 'error', 'assumed')),
    reserved_nano INTEGER NOT NULL CHECK (reserved_nano >= 0),
    reserved_tokens INTEGER NOT NULL CHECK (reserved_tokens >= 0),
    cost_nano INTEGER NOT NULL DEFAULT 0 CHECK (cost_nano >= 0),
    tokens INTEGER NOT NULL DEFAULT 0 CHECK (tokens >= 0),
    status INTEGER,
    error_class TEXT,
    error TEXT,
    sent_ms INTEGER NOT NULL,
    settled_ms INTEGER,
    PRIMARY KEY (request_id, number),
    CHECK ((outcome IN ('open', 'in_doubt')) = (settled_ms IS NULL))
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX attempt_live ON attempt (request_id) WHERE outcome IN ('open', 'in_doubt');

CREATE TABLE completion (
    request_id INTEGER PRIMARY KEY REFERENCES request,
    attempt INTEGER NOT NULL,
    text ANY NOT NULL,
    thinking ANY NOT NULL,
    finish TEXT NOT NULL,
    finish_raw TEXT NOT NULL,
    model_echo TEXT NOT NULL,
    provider_request_id TEXT NOT NULL,
    input_tokens INTEGER NOT NULL,
    cached_tokens INTEGER NOT NULL,
    cache_write_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    reasoning_tokens INTEGER NOT NULL,
    cost_nano INTEGER NOT NULL CHECK (cost_nano >= 0),
    latency_ms INTEGER NOT NULL,
    settled_ms INTEGER NOT NULL,
    raw BLOB NOT NULL
) STRICT;

-- One point of a sweep's design that a request answers; equal calls are shared by several cells. `joined` cells came when
-- their request was already under way or belonged to another sweep: they are read apart from its settlement.
CREATE TABLE cell (
    id INTEGER PRIMARY KEY,
    ident BLOB NOT NULL UNIQUE CHECK (length(ident) = 16),
    sweep_id INTEGER NOT NULL REFERENCES sweep,
    stage TEXT NOT NULL,
    alias TEXT NOT NULL,
    coords TEXT NOT NULL CHECK (json_valid(coords)),
    request_id INTEGER NOT NULL REFERENCES request,
    parent_id INTEGER REFERENCES cell,
    changes TEXT NOT NULL DEFAULT '',
    joined INTEGER NOT NULL DEFAULT 0 CHECK (joined IN (0, 1)),
    reading_status TEXT CHECK (reading_status IN ('complete', 'truncated', 'unreadable')),
    reading_reason TEXT NOT NULL DEFAULT '',
    reading_version INTEGER
) STRICT;
CREATE INDEX cell_request ON cell (request_id);
CREATE INDEX cell_joined ON cell (sweep_id, id) WHERE joined = 1 AND reading_status IS NULL;
CREATE INDEX cell_parent ON cell (parent_id) WHERE parent_id IS NOT NULL;

CREATE TRIGGER request_changes_sweep AFTER UPDATE OF sweep_id ON request WHEN OLD.sweep_id <> NEW.sweep_id BEGIN
    UPDATE cell SET joined = 1 WHERE request_id = NEW.id AND reading_status IS NULL;
END;

CREATE TABLE reading (
    cell_id INTEGER PRIMARY KEY REFERENCES cell,
    body TEXT NOT NULL CHECK (json_valid(body))
) STRICT;

-- What each budget scope has used; kept by the triggers below in the transaction of the attempt itself.
CREATE TABLE spend (
    sweep_id INTEGER NOT NULL REFERENCES sweep,
    provider TEXT NOT NULL,
    alias TEXT NOT NULL,
    stage TEXT NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    completions INTEGER NOT NULL DEFAULT 0,
    reserved_nano INTEGER NOT NULL DEFAULT 0 CHECK (reserved_nano >= 0),
    reserved_tokens INTEGER NOT NULL DEFAULT 0 CHECK (reserved_tokens >= 0),
    cost_nano INTEGER NOT NULL DEFAULT 0 CHECK (cost_nano >= 0),
    tokens INTEGER NOT NULL DEFAULT 0 CHECK (tokens >= 0),
    assumed INTEGER NOT NULL DEFAULT 0,
    assumed_nano INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (sweep_id, provider, alias, stage)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER attempt_reserves AFTER INSERT ON attempt BEGIN
    INSERT INTO spend (sweep_id, provider, alias, stage, attempts, reserved_nano, reserved_tokens)
    VALUES (NEW.sweep_id, NEW.provider, NEW.alias, NEW.stage, 1, NEW.reserved_nano, NEW.reserved_tokens)
    ON CONFLICT DO UPDATE SET attempts = attempts + 1, reserved_nano = reserved_nano + excluded.reserved_nano,
        reserved_tokens = reserved_tokens + excluded.reserved_tokens;
END;

CREATE TRIGGER attempt_settles AFTER UPDATE OF outcome ON attempt BEGIN
    UPDATE spend SET
        reserved_nano = reserved_nano
            + (NEW.outcome IN ('open', 'in_doubt')) * NEW.reserved_nano - (OLD.outcome IN ('open', 'in_doubt')) * OLD.reserved_nano,
        reserved_tokens = reserved_tokens
            + (NEW.outcome IN ('open', 'in_doubt')) * NEW.reserved_tokens - (OLD.outcome IN ('open', 'in_doubt')) * OLD.reserved_tokens,
        cost_nano = cost_nano + NEW.cost_nano - OLD.cost_nano,
        tokens = tokens + NEW.tokens - OLD.tokens,
        completions = completions + (NEW.outcome = 'completed') - (OLD.outcome = 'completed'),
        assumed = assumed + (NEW.outcome = 'assumed') - (OLD.outcome = 'assumed'),
        assumed_nano = assumed_nano + (NEW.outcome = 'assumed') * NEW.cost_nano - (OLD.outcome = 'assumed') * OLD.cost_nano
    WHERE sweep_id = NEW.sweep_id AND provider = NEW.provider AND alias = NEW.alias AND stage = NEW.stage;
END;

-- The public face: what people and tools may read. Texts above a kilobyte are zstd frames (BLOB), shorter ones are TEXT.
CREATE VIEW sweeps AS
SELECT id AS sweep_id, name AS sweep, simulated, manifest, created_ms FROM sweep;

CREATE VIEW requests AS
SELECT r.id AS request_id, lower(hex(r.key)) AS key, s.name AS sweep, r.provider, r.model, r.alias, r.stage,
       CASE WHEN r.state = 'settled'
                 AND NOT EXISTS (SELECT 1 FROM cell c WHERE c.request_id = r.id AND c.reading_status IS NULL)
            THEN 'read' ELSE r.state END AS state,
       r.attempts, r.error_class, r.error, d.finish, d.input_tokens, d.cached_tokens, d.output_tokens, d.reasoning_tokens,
       d.cost_nano, d.latency_ms, d.settled_ms, d.text
FROM request r JOIN sweep s ON s.id = r.sweep_id LEFT JOIN completion d ON d.request_id = r.id;

CREATE VIEW attempts AS
SELECT a.request_id, a.number, s.name AS sweep, a.provider, a.alias, a.stage, a.outcome, a.reserved_nano, a.cost_nano,
       a.tokens, a.status, a.error_class, a.error, a.sent_ms, a.settled_ms
FROM attempt a JOIN sweep s ON s.id = a.sweep_id;

CREATE VIEW spending AS
SELECT s.name AS sweep, p.provider, p.alias, p.stage, p.attempts, p.completions, p.cost_nano, p.reserved_nano, p.tokens,
       p.assumed, p.assumed_nano
FROM spend p JOIN sweep s ON s.id = p.sweep_id;
