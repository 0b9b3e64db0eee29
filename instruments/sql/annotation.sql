-- Human validation of a judge: blind samples of judged claims and the labels that people gave them.
-- Labels are G grounded, R reasonable, S stereotype, F fabricated. Times are Unix milliseconds.
-- A label is never changed or deleted: an undo or a replacement sets `retracted_ms`, and a new row follows.

CREATE TABLE IF NOT EXISTS annotation_sample (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE CHECK (length(name) > 0),
    sweep_id INTEGER NOT NULL REFERENCES sweep,
    judge TEXT NOT NULL,
    seed INTEGER NOT NULL,
    size INTEGER NOT NULL CHECK (size >= 1),
    plan TEXT NOT NULL CHECK (json_valid(plan)),
    population TEXT NOT NULL CHECK (json_valid(population)),
    strata TEXT NOT NULL CHECK (json_valid(strata)),
    created_ms INTEGER NOT NULL
) STRICT;

-- `id`, `position`, `facts`, `task` and `claim` are what an annotator may see; every other column would unblind.
CREATE TABLE IF NOT EXISTS annotation_item (
    id TEXT PRIMARY KEY CHECK (length(id) >= 8),
    sample_id INTEGER NOT NULL REFERENCES annotation_sample,
    position INTEGER NOT NULL CHECK (position >= 1),
    facts TEXT NOT NULL CHECK (json_valid(facts)),
    task TEXT NOT NULL,
    claim TEXT NOT NULL,
    judge_cell_id INTEGER NOT NULL REFERENCES cell,
    claim_index INTEGER NOT NULL CHECK (claim_index >= 0),
    judge_label TEXT NOT NULL CHECK (judge_label IN ('G', 'R', 'S', 'F')),
    model TEXT NOT NULL,
    persona TEXT NOT NULL,
    task_id TEXT NOT NULL,
    sample INTEGER NOT NULL,
    UNIQUE (sample_id, position),
    UNIQUE (sample_id, judge_cell_id, claim_index)
) STRICT;

-- `label` is NULL where the annotator skipped the item. `submission` names one press of a button: repeating it is no
-- second label. `elapsed_ms` is the time for which the item was on screen, NULL where nobody measured it.
CREATE TABLE IF NOT EXISTS annotation_label (
    id INTEGER PRIMARY KEY,
    item_id TEXT NOT NULL REFERENCES annotation_item,
    annotator TEXT NOT NULL CHECK (length(annotator) BETWEEN 1 AND 64),
    label TEXT CHECK (label IN ('G', 'R', 'S', 'F')),
    comment TEXT NOT NULL DEFAULT '',
    elapsed_ms INTEGER CHECK (elapsed_ms >= 0),
    source TEXT NOT NULL CHECK (source IN ('page', 'sheet')),
    submission TEXT UNIQUE,
    created_ms INTEGER NOT NULL,
    retracted_ms INTEGER
) STRICT;
CREATE UNIQUE INDEX IF NOT EXISTS annotation_label_current ON annotation_label (item_id, annotator) WHERE retracted_ms IS NULL;
CREATE INDEX IF NOT EXISTS annotation_label_annotator ON annotation_label (annotator, id) WHERE retracted_ms IS NULL;

CREATE TRIGGER IF NOT EXISTS annotation_label_stays BEFORE DELETE ON annotation_label BEGIN
    SELECT raise(ABORT, 'labels are never deleted');
END;

CREATE TRIGGER IF NOT EXISTS annotation_label_is_only_retracted BEFORE UPDATE ON annotation_label
WHEN OLD.retracted_ms IS NOT NULL OR NEW.retracted_ms IS NULL OR NEW.id <> OLD.id OR NEW.item_id <> OLD.item_id
    OR NEW.annotator <> OLD.annotator OR NEW.label IS NOT OLD.label OR NEW.comment <> OLD.comment
    OR NEW.elapsed_ms IS NOT OLD.elapsed_ms OR NEW.source <> OLD.source OR NEW.submission IS NOT OLD.submission
    OR NEW.created_ms <> OLD.created_ms
BEGIN
    SELECT raise(ABORT, 'a label can only be retracted, and only once');
END;

-- One row a sample. `population` is a JSON object: claims of the sweep by the judge's label when the sample was drawn,
-- which are the weights of the strata. `strata` says per label what was wanted, what was reached and what there is.
DROP VIEW IF EXISTS annotation_samples;
CREATE VIEW annotation_samples AS
SELECT a.name AS sample, a.sweep_id, s.name AS sweep, s.simulated, s.manifest, a.judge, a.seed, a.size,
       (SELECT count(*) FROM annotation_item i WHERE i.sample_id = a.id) AS items,
       a.plan, a.population, a.strata, a.created_ms
FROM annotation_sample a JOIN sweep s ON s.id = a.sweep_id;

-- One row for each item that an annotator has labelled: their label beside the judge's. Skipped items have no row.
DROP VIEW IF EXISTS annotations;
CREATE VIEW annotations AS
SELECT a.name AS sample, a.sweep_id, i.position, i.id AS item, l.annotator, l.label, i.judge_label, a.judge,
       i.claim, l.comment, i.model, i.persona, i.task_id AS task, l.elapsed_ms, l.source, l.created_ms AS labelled_ms
FROM annotation_label l
JOIN annotation_item i ON i.id = l.item_id
JOIN annotation_sample a ON a.id = i.sample_id
WHERE l.retracted_ms IS NULL AND l.label IS NOT NULL;

-- One row for each annotator of a sample: how far they are and how long they looked.
DROP VIEW IF EXISTS annotation_progress;
CREATE VIEW annotation_progress AS
SELECT a.name AS sample, l.annotator, count(l.label) AS labelled, count(*) - count(l.label) AS skipped,
       coalesce(sum(l.elapsed_ms), 0) AS elapsed_ms, min(l.created_ms) AS first_ms, max(l.created_ms) AS last_ms
FROM annotation_label l
JOIN annotation_item i ON i.id = l.item_id
JOIN annotation_sample a ON a.id = i.sample_id
WHERE l.retracted_ms IS NULL
GROUP BY a.name, l.annotator;
