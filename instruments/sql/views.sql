-- What analysis may read of an instrument's results. Documented column by column in analysis/DICTIONARY.md.
-- `state` is read | truncated | unreadable | failed | pending; `reason` says why a value is missing.
-- `labels` has one letter per claim: G grounded, R reasonable, S stereotype, F fabricated;
-- `accuracy` one per claim: C correct, I incorrect, P partially correct, U unverifiable, '-' not given.
-- `unread` counts elements of an answer that held no claim or no known label; they are in no other column.

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

DROP VIEW IF EXISTS records;
CREATE VIEW records AS
SELECT t.sweep_id, t.coords ->> 'model' AS model, t.coords ->> 'persona' AS persona, t.coords ->> 'group' AS persona_group,
       t.coords ->> 'task' AS task, coalesce(t.coords ->> 'sample', 0) AS sample, g.value AS judge,
       CASE WHEN j.cell_id IS NOT NULL THEN j.state WHEN t.state IN ('failed', 'unreadable') THEN t.state ELSE 'pending' END AS state,
       CASE WHEN j.cell_id IS NOT NULL THEN j.reason WHEN t.state IN ('failed', 'unreadable') THEN 'task ' || t.reason ELSE '' END AS reason,
       b.body ->> 'labels' AS labels, b.body ->> 'accuracy' AS accuracy, b.body -> 'claims' AS claims,
       coalesce(b.body ->> 'unread', 0) AS unread, coalesce(b.body ->> 'unread_accuracy', 0) AS unread_accuracy,
       t.cell_id AS task_cell_id, j.cell_id AS judge_cell_id,
       (SELECT a.body ->> 'characters' FROM reading a WHERE a.cell_id = t.cell_id) AS response_characters
FROM progress t
JOIN sweep s ON s.id = t.sweep_id
JOIN json_each(s.manifest, '$.judges') g
LEFT JOIN progress j ON j.parent_id = t.cell_id AND j.stage = 'judge' AND j.coords ->> 'judge' = g.value
LEFT JOIN reading b ON b.cell_id = j.cell_id
WHERE t.stage = 'task';

DROP VIEW IF EXISTS audits;
CREATE VIEW audits AS
SELECT t.sweep_id, t.coords ->> 'model' AS model, t.coords ->> 'persona' AS persona, t.coords ->> 'group' AS persona_group,
       t.coords ->> 'task' AS task, coalesce(t.coords ->> 'sample', 0) AS sample,
       CASE WHEN a.cell_id IS NOT NULL THEN a.state WHEN t.state IN ('failed', 'unreadable') THEN t.state ELSE 'pending' END AS state,
       CASE WHEN a.cell_id IS NOT NULL THEN a.reason WHEN t.state IN ('failed', 'unreadable') THEN 'task ' || t.reason ELSE '' END AS reason,
       b.body ->> 'labels' AS labels, b.body -> 'claims' AS claims, coalesce(b.body ->> 'unread', 0) AS unread,
       t.cell_id AS task_cell_id, a.cell_id AS audit_cell_id
FROM progress t
LEFT JOIN progress a ON a.parent_id = t.cell_id AND a.stage = 'audit'
LEFT JOIN reading b ON b.cell_id = a.cell_id
WHERE t.stage = 'task';

DROP VIEW IF EXISTS probes;
CREATE VIEW probes AS
SELECT p.sweep_id, p.model, p.persona, p.persona_group, p.sample, g.value AS judge,
       CASE WHEN j.cell_id IS NOT NULL THEN j.state WHEN p.state IN ('failed', 'unreadable') THEN p.state ELSE 'pending' END AS state,
       CASE WHEN j.cell_id IS NOT NULL THEN j.reason WHEN p.state IN ('failed', 'unreadable') THEN 'probe ' || p.reason ELSE '' END AS reason,
       b.body ->> 'labels' AS labels, b.body ->> 'accuracy' AS accuracy, b.body -> 'claims' AS claims,
       coalesce(b.body ->> 'unread', 0) AS unread, coalesce(b.body ->> 'unread_accuracy', 0) AS unread_accuracy,
       p.reading -> 'inferences' AS inferences
FROM answers p
JOIN sweep s ON s.id = p.sweep_id
JOIN json_each(s.manifest, '$.judges') g
LEFT JOIN progress j ON j.parent_id = p.cell_id AND j.stage = 'probe_judge' AND j.coords ->> 'judge' = g.value
LEFT JOIN reading b ON b.cell_id = j.cell_id
WHERE p.stage = 'probe';

DROP VIEW IF EXISTS memories;
CREATE VIEW memories AS
SELECT sweep_id, model, persona, persona_group, round, sample, prompt, state, reason,
       reading -> 'inferred' AS inferred, reading ->> 'observed_count' AS observed_count
FROM answers WHERE stage = 'accum';

DROP VIEW IF EXISTS calls;
CREATE VIEW calls AS
SELECT a.sweep_id, a.stage, a.alias AS model, a.model AS subject, r.provider, r.model AS snapshot, a.persona, a.task, a.round, a.sample, a.judge,
       a.state, a.reason, r.error_class, r.attempts, d.finish, d.input_tokens, d.cached_tokens, d.output_tokens, d.reasoning_tokens,
       d.cost_nano, d.latency_ms, c.changes
FROM answers a
JOIN cell c ON c.id = a.cell_id
JOIN request r ON r.id = a.request_id
LEFT JOIN completion d ON d.request_id = r.id;
