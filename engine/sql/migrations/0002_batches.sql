-- Batches: requests that a provider works off by itself. Every step of a submission is here before it is taken.

-- `stage` is where the submission stands (see engine/batch/stage.py), `remote` the provider's last word as JSON, `wanted`
-- whether its cancellation has been ordered. A batch is submitted once; what it leaves over goes into another.
CREATE TABLE batch (
    id INTEGER PRIMARY KEY,
    sweep_id INTEGER NOT NULL REFERENCES sweep,
    run_id INTEGER NOT NULL REFERENCES run,
    lane TEXT NOT NULL,
    provider TEXT NOT NULL,
    model TEXT NOT NULL,
    stage TEXT NOT NULL DEFAULT 'building' CHECK (stage IN
        ('building', 'ready', 'uploaded', 'creating', 'in_doubt', 'open', 'ended', 'settled', 'closed', 'dropped')),
    marker TEXT NOT NULL DEFAULT '',
    count INTEGER NOT NULL DEFAULT 0 CHECK (count >= 0),
    bytes INTEGER NOT NULL DEFAULT 0 CHECK (bytes >= 0),
    tokens INTEGER NOT NULL DEFAULT 0 CHECK (tokens >= 0),
    file_id TEXT NOT NULL DEFAULT '',
    remote_id TEXT NOT NULL DEFAULT '',
    remote TEXT NOT NULL DEFAULT '{}' CHECK (json_valid(remote)),
    cancelled INTEGER NOT NULL DEFAULT 0 CHECK (cancelled IN (0, 1)),
    reason TEXT NOT NULL DEFAULT '',
    built_ms INTEGER NOT NULL,
    created_ms INTEGER,
    ended_ms INTEGER,
    closed_ms INTEGER,
    CHECK (stage IN ('building', 'dropped') OR marker <> ''),
    CHECK (stage NOT IN ('open', 'ended') OR remote_id <> '')
) STRICT;
CREATE INDEX batch_live ON batch (sweep_id) WHERE stage NOT IN ('closed', 'dropped');

ALTER TABLE attempt ADD COLUMN batch_id INTEGER REFERENCES batch;
ALTER TABLE attempt ADD COLUMN line INTEGER;
CREATE UNIQUE INDEX attempt_line ON attempt (batch_id, line) WHERE batch_id IS NOT NULL;

-- Whether anything of a stage is still to come, which decides when a batch is full enough.
CREATE INDEX request_pending ON request (sweep_id, stage) WHERE state IN ('planned', 'sent', 'in_doubt');

CREATE VIEW batches AS
SELECT b.id AS batch_id, s.name AS sweep, b.provider, b.model, b.stage, b.marker, b.count AS requests, b.bytes, b.tokens,
       b.remote_id, json_extract(b.remote, '$.status') AS remote_status, b.cancelled, b.reason,
       (SELECT count(*) FROM attempt a WHERE a.batch_id = b.id AND a.outcome = 'completed') AS completed,
       (SELECT count(*) FROM attempt a WHERE a.batch_id = b.id AND a.outcome = 'open') AS open,
       b.built_ms, b.created_ms, b.ended_ms, b.closed_ms
FROM batch b JOIN sweep s ON s.id = b.sweep_id;

DROP VIEW attempts;
CREATE VIEW attempts AS
SELECT a.request_id, a.number, s.name AS sweep, a.provider, a.alias, a.stage, a.outcome, a.reserved_nano, a.cost_nano,
       a.tokens, a.status, a.error_class, a.error, a.sent_ms, a.settled_ms, a.batch_id
FROM attempt a JOIN sweep s ON s.id = a.sweep_id;
