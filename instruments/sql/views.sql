-- What analysis may read of an instrument's results. Documented column by column in analysis/DICTIONARY.md.
-- `state` is read | truncated | unreadable | failed | pending; `reason` says why a value is missing.
-- `labels` has one letter per claim: G grounded, R reasonable, S stereotype, F fabricated;
-- `accuracy` one per claim: C correct, I incorrect, P partially correct, U unverifiable, '-' not given.
-- `unread` counts elements of an answer that held no claim or no known label; they are in no other column.
-- `answer_cut` is 1 where the answer that was labelled had been cut short itself, however whole the labelling is.
--
-- Requests are looked up only where a cell has no reading, and manifests are taken apart once a sweep and not once a
-- cell (CROSS JOIN keeps SQLite to that order); a LEFT JOIN is left out where nobody asks for its columns. Stores of
-- millions of cells are read in seconds.

-- Raised with every change by which a reader of the views could be misled; readers refuse what they do not know.
DROP VIEW IF EXISTS views_version;
CREATE VIEW views_version AS SELECT 2 AS version;

DROP VIEW IF EXISTS models;
CREATE VIEW models AS
SELECT s.id AS sweep_id, s.name AS sweep, m.key AS model, coalesce(m.value ->> 'label', m.key) AS label,
       m.value ->> 'family' AS family, m.value ->> 'provider' AS provider, m.value ->> 'model' AS snapshot,
       EXISTS (SELECT 1 FROM json_each(s.manifest, '$.subjects') x WHERE x.value = m.key) AS is_subject,
       EXISTS (SELECT 1 FROM json_each(s.manifest, '$.judges') x WHERE x.value = m.key) AS is_judge
FROM sweep s, json_each(s.manifest, '$.models') m;

-- Where every cell of a sweep stands; light, since it reads no bodies.
DROP VIEW IF EXISTS progress;
CREATE VIEW progress AS
SELECT c.id AS cell_id, c.sweep_id, c.stage, c.alias, c.parent_id, c.request_id, c.coords,
       CASE WHEN c.reading_status = 'complete' THEN 'read' WHEN c.reading_status IS NOT NULL THEN c.reading_status
            WHEN r.state = 'failed' THEN 'failed' ELSE 'pending' END AS state,
       CASE WHEN c.reading_status IS NOT NULL THEN c.reading_reason
            WHEN r.state = 'failed' THEN r.error_class || ': ' || r.error ELSE '' END AS reason
FROM cell c JOIN request r ON r.id = c.request_id;

DROP VIEW IF EXISTS answers;
CREATE VIEW answers AS
SELECT p.cell_id, p.sweep_id, p.stage, p.alias, p.parent_id, p.request_id,
       p.coords ->> 'model' AS model, p.coords ->> 'persona' AS persona, p.coords ->> 'group' AS persona_group,
       coalesce(p.coords ->> 'task', '') AS task, coalesce(p.coords ->> 'round', 0) AS round,
       coalesce(p.coords ->> 'sample', 0) AS sample, coalesce(p.coords ->> 'judge', '') AS judge,
       coalesce(p.coords ->> 'prompt', '') AS prompt, p.state, p.reason, b.body AS reading
FROM progress p LEFT JOIN reading b ON b.cell_id = p.cell_id;

-- Why an answer has no labels: that of the labelling `l` where there is one, else of the answer `t` itself.
DROP VIEW IF EXISTS records;
CREATE VIEW records AS
SELECT t.sweep_id, t.coords ->> 'model' AS model, t.coords ->> 'persona' AS persona, t.coords ->> 'group' AS persona_group,
       t.coords ->> 'task' AS task, coalesce(t.coords ->> 'sample', 0) AS sample, g.value AS judge,
       CASE WHEN l.reading_status = 'complete' THEN 'read' WHEN l.reading_status IS NOT NULL THEN l.reading_status
            WHEN l.id IS NULL AND t.reading_status = 'unreadable' THEN 'unreadable'
            ELSE coalesce((SELECT 'failed' FROM request r
                           WHERE r.id = coalesce(l.request_id, t.request_id) AND r.state = 'failed'), 'pending') END AS state,
       CASE WHEN l.reading_status IS NOT NULL THEN l.reading_reason
            WHEN l.id IS NULL AND t.reading_status = 'unreadable' THEN 'task ' || t.reading_reason
            ELSE coalesce((SELECT iif(l.id IS NULL, 'task ', '') || r.error_class || ': ' || r.error FROM request r
                           WHERE r.id = coalesce(l.request_id, t.request_id) AND r.state = 'failed'), '') END AS reason,
       b.body ->> 'labels' AS labels, b.body ->> 'accuracy' AS accuracy, b.body -> 'claims' AS claims,
       coalesce(b.body ->> 'unread', 0) AS unread, coalesce(b.body ->> 'unread_accuracy', 0) AS unread_accuracy,
       t.reading_status IS 'truncated' AS answer_cut, t.id AS task_cell_id, l.id AS judge_cell_id,
       (SELECT a.body ->> 'characters' FROM reading a WHERE a.cell_id = t.id) AS response_characters
FROM sweep s
CROSS JOIN json_each(s.manifest, '$.judges') g
CROSS JOIN cell t ON t.sweep_id = s.id AND t.stage = 'task'
LEFT JOIN cell l ON l.parent_id = t.id AND l.stage = 'judge' AND l.coords ->> 'judge' = g.value
LEFT JOIN reading b ON b.cell_id = l.id;

DROP VIEW IF EXISTS audits;
CREATE VIEW audits AS
SELECT t.sweep_id, t.coords ->> 'model' AS model, t.coords ->> 'persona' AS persona, t.coords ->> 'group' AS persona_group,
       t.coords ->> 'task' AS task, coalesce(t.coords ->> 'sample', 0) AS sample,
       CASE WHEN l.reading_status = 'complete' THEN 'read' WHEN l.reading_status IS NOT NULL THEN l.reading_status
            WHEN l.id IS NULL AND t.reading_status = 'unreadable' THEN 'unreadable'
            ELSE coalesce((SELECT 'failed' FROM request r
                           WHERE r.id = coalesce(l.request_id, t.request_id) AND r.state = 'failed'), 'pending') END AS state,
       CASE WHEN l.reading_status IS NOT NULL THEN l.reading_reason
            WHEN l.id IS NULL AND t.reading_status = 'unreadable' THEN 'task ' || t.reading_reason
            ELSE coalesce((SELECT iif(l.id IS NULL, 'task ', '') || r.error_class || ': ' || r.error FROM request r
                           WHERE r.id = coalesce(l.request_id, t.request_id) AND r.state = 'failed'), '') END AS reason,
       b.body ->> 'labels' AS labels, b.body -> 'claims' AS claims, coalesce(b.body ->> 'unread', 0) AS unread,
       t.reading_status IS 'truncated' AS answer_cut, t.id AS task_cell_id, l.id AS audit_cell_id
FROM cell t
LEFT JOIN cell l ON l.parent_id = t.id AND l.stage = 'audit'
LEFT JOIN reading b ON b.cell_id = l.id
WHERE t.stage = 'task';

DROP VIEW IF EXISTS probes;
CREATE VIEW probes AS
SELECT t.sweep_id, t.coords ->> 'model' AS model, t.coords ->> 'persona' AS persona, t.coords ->> 'group' AS persona_group,
       coalesce(t.coords ->> 'sample', 0) AS sample, g.value AS judge,
       CASE WHEN l.reading_status = 'complete' THEN 'read' WHEN l.reading_status IS NOT NULL THEN l.reading_status
            WHEN l.id IS NULL AND t.reading_status = 'unreadable' THEN 'unreadable'
            ELSE coalesce((SELECT 'failed' FROM request r
                           WHERE r.id = coalesce(l.request_id, t.request_id) AND r.state = 'failed'), 'pending') END AS state,
       CASE WHEN l.reading_status IS NOT NULL THEN l.reading_reason
            WHEN l.id IS NULL AND t.reading_status = 'unreadable' THEN 'probe ' || t.reading_reason
            ELSE coalesce((SELECT iif(l.id IS NULL, 'probe ', '') || r.error_class || ': ' || r.error FROM request r
                           WHERE r.id = coalesce(l.request_id, t.request_id) AND r.state = 'failed'), '') END AS reason,
       b.body ->> 'labels' AS labels, b.body ->> 'accuracy' AS accuracy, b.body -> 'claims' AS claims,
       coalesce(b.body ->> 'unread', 0) AS unread, coalesce(b.body ->> 'unread_accuracy', 0) AS unread_accuracy,
       t.reading_status IS 'truncated' AS answer_cut,
       (SELECT a.body -> 'inferences' FROM reading a WHERE a.cell_id = t.id) AS inferences
FROM sweep s
CROSS JOIN json_each(s.manifest, '$.judges') g
CROSS JOIN cell t ON t.sweep_id = s.id AND t.stage = 'probe'
LEFT JOIN cell l ON l.parent_id = t.id AND l.stage = 'probe_judge' AND l.coords ->> 'judge' = g.value
LEFT JOIN reading b ON b.cell_id = l.id;

DROP VIEW IF EXISTS memories;
CREATE VIEW memories AS
SELECT sweep_id, model, persona, persona_group, round, sample, prompt, state, reason,
       reading -> 'inferred' AS inferred, reading ->> 'observed_count' AS observed_count
FROM answers WHERE stage = 'accum';

DROP VIEW IF EXISTS calls;
CREATE VIEW calls AS
SELECT c.sweep_id, c.stage, c.alias AS model, c.coords ->> 'model' AS subject, r.provider, r.model AS snapshot,
       c.coords ->> 'persona' AS persona, coalesce(c.coords ->> 'task', '') AS task, coalesce(c.coords ->> 'round', 0) AS round,
       coalesce(c.coords ->> 'sample', 0) AS sample, coalesce(c.coords ->> 'judge', '') AS judge,
       CASE WHEN c.reading_status = 'complete' THEN 'read' WHEN c.reading_status IS NOT NULL THEN c.reading_status
            ELSE coalesce((SELECT 'failed' FROM request q WHERE q.id = c.request_id AND q.state = 'failed'), 'pending') END AS state,
       CASE WHEN c.reading_status IS NOT NULL THEN c.reading_reason
            ELSE coalesce((SELECT q.error_class || ': ' || q.error FROM request q
                           WHERE q.id = c.request_id AND q.state = 'failed'), '') END AS reason,
       r.error_class, r.attempts, d.finish, d.input_tokens, d.cached_tokens, d.output_tokens, d.reasoning_tokens, d.cost_nano,
       d.latency_ms, c.changes
FROM cell c
LEFT JOIN request r ON r.id = c.request_id
LEFT JOIN completion d ON d.request_id = c.request_id;
