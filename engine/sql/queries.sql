-- Statements by name. `:name` parameters; one statement each. `@EVENT@` lists the states in which the transition table
-- allows that event, `@VERSION@` is the schema's. Where rows.py has a row for a statement, its fields come in this order; `:rows` are such rows as JSON.

-- plan_request --
INSERT INTO request (key, sweep_id, lane, provider, model, alias, stage, priority, size, messages)
VALUES (:key, :sweep_id, :lane, :provider, :model, :alias, :stage, :priority, :size, :messages)
ON CONFLICT (key) DO UPDATE SET sweep_id = excluded.sweep_id, lane = excluded.lane, alias = excluded.alias, stage = excluded.stage,
    priority = excluded.priority, state = 'planned', failures = 0, throttles = 0, error_class = NULL, error = NULL
WHERE request.owner IS NULL AND (
    request.sweep_id <> excluded.sweep_id AND request.state IN ('planned', 'failed')
    OR request.alias <> excluded.alias AND request.state = 'planned');

-- plan_prompt --
INSERT INTO prompt (request_id, body) SELECT r.id, t.column2 FROM (VALUES (:key, :body)) t CROSS JOIN request r ON r.key = t.column1
WHERE true ON CONFLICT DO NOTHING;

-- plan_cell --
INSERT INTO cell (ident, sweep_id, stage, alias, coords, parent_id, changes, request_id, joined)
SELECT t.column1, t.column2, t.column3, t.column4, t.column5, t.column6, t.column7, r.id,
    r.state <> 'planned' OR r.owner IS NOT NULL
FROM (VALUES (:ident, :sweep_id, :stage, :alias, :coords, :parent_id, :changes, :key)) t CROSS JOIN request r ON r.key = t.column8
WHERE true ON CONFLICT (ident) DO NOTHING;

-- adopt --
UPDATE request SET sweep_id = :sweep_id, alias = c.alias, stage = c.stage, state = 'planned', failures = 0, throttles = 0,
    error_class = NULL, error = NULL
FROM (SELECT request_id, alias, stage, min(id) FROM cell
      WHERE sweep_id = :sweep_id AND joined = 1 AND reading_status IS NULL GROUP BY request_id) c
WHERE request.id = c.request_id AND request.sweep_id <> :sweep_id AND request.state IN ('planned', 'failed')
    AND request.owner IS NULL
RETURNING id;

-- mark_planned --
UPDATE sweep SET planned = 1 WHERE id = :sweep_id;

-- send_requests --
UPDATE request SET state = 'sent', attempts = attempts + 1
FROM json_each(:rows) t
WHERE request.id = t.value ->> 3 AND owner = t.value ->> 4 AND attempts = t.value ->> 5 - 1 AND state = 'planned';

-- send_attempts --
INSERT INTO attempt (request_id, number, run_id, sweep_id, provider, alias, stage, reserved_nano, reserved_tokens, sent_ms)
SELECT r.id, r.attempts, r.owner, r.sweep_id, r.provider, r.alias, r.stage, t.value ->> 0, t.value ->> 1, t.value ->> 2
FROM json_each(:rows) t CROSS JOIN request r ON r.id = t.value ->> 3
WHERE r.owner = t.value ->> 4 AND r.attempts = t.value ->> 5 AND r.state = 'sent';

-- was_sent --
SELECT count(*) FROM attempt WHERE request_id = :request_id AND number = :number AND run_id = :run_id;

-- settle_attempt --
UPDATE attempt SET outcome = 'completed', cost_nano = :cost_nano, tokens = :tokens, settled_ms = :settled_ms
WHERE request_id = :request_id AND number = :number AND outcome <> 'completed';

-- settle_completion --
INSERT INTO completion (request_id, attempt, text, thinking, finish, finish_raw, model_echo, provider_request_id, input_tokens,
    cached_tokens, cache_write_tokens, output_tokens, reasoning_tokens, cost_nano, latency_ms, settled_ms, raw)
VALUES (:request_id, :attempt, :text, :thinking, :finish, :finish_raw, :model_echo, :provider_request_id, :input_tokens,
    :cached_tokens, :cache_write_tokens, :output_tokens, :reasoning_tokens, :cost_nano, :latency_ms, :settled_ms, :raw)
ON CONFLICT (request_id) DO NOTHING;

-- settle_attempts --
UPDATE attempt SET outcome = 'completed', cost_nano = d.cost_nano, tokens = max(0, d.input_tokens + d.output_tokens),
    settled_ms = d.settled_ms
FROM json_each(:ids) t CROSS JOIN completion d ON d.request_id = t.value
WHERE attempt.request_id = d.request_id AND attempt.number = d.attempt AND outcome <> 'completed';

-- settle_requests --
UPDATE request SET state = 'settled', owner = NULL, lease_ms = NULL, error_class = NULL, error = NULL
WHERE id IN (SELECT value FROM json_each(:ids)) AND state IN (@COMPLETE@);

-- answering_attempt --
SELECT attempt FROM completion WHERE request_id = :request_id;

-- join_cells --
UPDATE cell SET joined = 1 WHERE request_id IN (SELECT value FROM json_each(:ids)) AND reading_status IS NULL;

-- fail_request --
UPDATE request SET state = :state, error_class = :error_class, error = :error, failures = :failures,
    throttles = :throttles, owner = iif(:keep, owner, NULL), lease_ms = iif(:keep, lease_ms, NULL)
WHERE id = :request_id AND attempts = :number AND state IN (@RETRY@);

-- fail_attempt --
UPDATE attempt SET outcome = :outcome, cost_nano = :cost_nano, tokens = :tokens, status = :status,
    error_class = :error_class, error = :error, settled_ms = :settled_ms
WHERE request_id = :request_id AND number = :number AND outcome IN ('open', 'in_doubt');

-- read_cells --
UPDATE cell SET reading_status = :status, reading_reason = :reason, reading_version = :version
WHERE id IN (SELECT value FROM json_each(:ids));

-- read_body --
INSERT INTO reading (cell_id, body) VALUES (:cell_id, :body) ON CONFLICT (cell_id) DO UPDATE SET body = excluded.body;

-- release --
UPDATE request SET owner = NULL, lease_ms = NULL WHERE id IN (SELECT value FROM json_each(:ids)) AND owner = :run_id;

-- renew --
UPDATE request SET lease_ms = :lease_ms WHERE id IN (SELECT value FROM json_each(:ids)) AND owner = :run_id
RETURNING id;

-- expire --
UPDATE request SET owner = NULL, lease_ms = NULL
WHERE (owner < :run_id OR owner > :run_id) AND lease_ms < :now_ms AND state = 'planned';

-- lease --
UPDATE request SET owner = :run_id, lease_ms = :lease_ms WHERE id IN (
    SELECT id FROM request WHERE sweep_id = :sweep_id AND lane = :lane AND state = 'planned' AND owner IS NULL
        AND stage NOT IN (SELECT value FROM json_each(:skip_stages))
        AND (:aliases IS NULL OR alias IN (SELECT value FROM json_each(:aliases))) ORDER BY priority, id LIMIT :most)
RETURNING id;

-- lease_prompts --
SELECT r.id, r.key, r.lane, r.stage, r.alias, r.attempts, r.failures, r.throttles, r.size, r.messages, p.body
FROM json_each(:ids) t JOIN request r ON r.id = t.value JOIN prompt p ON p.request_id = r.id
ORDER BY r.priority, r.id;

-- lease_cells --
SELECT c.request_id, c.id, c.stage, c.coords FROM json_each(:ids) t JOIN cell c ON c.request_id = t.value
WHERE c.sweep_id = :sweep_id AND c.reading_status IS NULL ORDER BY c.id;

-- unread --
SELECT c.id, c.stage, c.coords, d.text, d.thinking, d.finish, d.finish_raw, d.model_echo, d.provider_request_id,
    d.input_tokens, d.cached_tokens, d.cache_write_tokens, d.output_tokens, d.reasoning_tokens, d.raw
FROM cell c JOIN completion d ON d.request_id = c.request_id
WHERE c.sweep_id = :sweep_id AND c.joined = 1 AND c.reading_status IS NULL AND c.id > :after ORDER BY c.id LIMIT :most;

-- sent_lately --
SELECT max(a.sent_ms), count(*) FROM attempt a JOIN request r ON r.id = a.request_id
WHERE r.lane = :lane AND a.sent_ms > :after_ms GROUP BY a.sent_ms / 60000 ORDER BY 1;

-- waiting --
SELECT lane, count(*) FROM request WHERE sweep_id = :sweep_id AND state = 'planned' AND owner IS NULL GROUP BY lane;

-- request_of_key --
SELECT id FROM request WHERE key = :key;

-- begin_run --
INSERT INTO run (sweep_id, manifest, pid, started_ms) VALUES (:sweep_id, :manifest, :pid, :now_ms) RETURNING id;

-- end_run --
UPDATE run SET ended_ms = :now_ms, outcome = :outcome WHERE id = :run_id;

-- doubt_attempts --
UPDATE attempt SET outcome = 'in_doubt' WHERE outcome IN ('open', 'in_doubt') AND outcome = 'open' AND batch_id IS NULL;

-- lose_requests --
UPDATE request SET state = 'in_doubt'
WHERE id IN (SELECT request_id FROM attempt WHERE outcome IN ('open', 'in_doubt') AND outcome = 'in_doubt') AND state = 'sent';

-- retry_lost_requests --
UPDATE request SET state = 'planned'
WHERE id IN (SELECT request_id FROM attempt WHERE outcome IN ('open', 'in_doubt') AND outcome = 'in_doubt') AND state = 'in_doubt';

-- forget_leases --
UPDATE request SET owner = NULL, lease_ms = NULL WHERE owner IS NOT NULL;

-- doubtful --
SELECT count(*), coalesce(sum(iif(provider IN (SELECT value FROM json_each(:free_providers)), 0, reserved_nano)), 0)
FROM attempt WHERE outcome IN ('open', 'in_doubt') AND outcome = 'in_doubt';

-- assume_billed --
UPDATE attempt SET outcome = 'assumed', cost_nano = reserved_nano, tokens = reserved_tokens, settled_ms = :now_ms,
    error_class = 'transient', error = 'interrupted while on the wire; counted as billed'
WHERE outcome IN ('open', 'in_doubt') AND outcome = 'in_doubt' AND reserved_nano > 0 AND provider NOT IN (SELECT value FROM json_each(:free_providers));

-- assume_free --
UPDATE attempt SET outcome = 'error', settled_ms = :now_ms, error_class = 'transient', error = 'interrupted'
WHERE outcome IN ('open', 'in_doubt') AND outcome = 'in_doubt';

-- revive --
UPDATE request SET state = 'planned', failures = 0, throttles = 0, error_class = NULL, error = NULL
WHERE sweep_id = :sweep_id AND state = 'failed' AND (:error_class = '' OR error_class = :error_class)
RETURNING id;

-- spent --
SELECT provider, alias, stage, cost_nano, tokens, reserved_nano, reserved_tokens FROM spend WHERE sweep_id = :sweep_id;

-- probe --
PRAGMA user_version = @VERSION@;

-- find_sweep --
SELECT id, name, simulated, manifest, plan_hash, planned FROM sweep WHERE name = :name;

-- add_sweep --
INSERT INTO sweep (name, simulated, manifest, plan_hash, created_ms) VALUES (:name, :simulated, :manifest, :plan_hash, :now_ms)
RETURNING id;

-- update_sweep --
UPDATE sweep SET manifest = :manifest, plan_hash = :plan_hash, planned = :planned, simulated = coalesce(:simulated, simulated)
WHERE id = :sweep_id;

-- answered_otherwise --
SELECT s.name FROM sweep s
WHERE s.simulated <> :simulated AND EXISTS (
    SELECT 1 FROM spend p WHERE p.sweep_id = s.id AND (p.completions > 0 OR p.reserved_tokens > 0))
ORDER BY s.id;

-- reroute --
UPDATE request SET lane = t.lane
FROM (SELECT value ->> 'alias' AS alias, value ->> 'stage' AS stage, value ->> 'lane' AS lane FROM json_each(:lanes)) t
WHERE request.sweep_id = :sweep_id AND request.state = 'planned' AND request.alias = t.alias AND request.stage = t.stage
    AND request.lane <> t.lane
RETURNING id;

-- add_batch --
INSERT INTO batch (sweep_id, run_id, lane, provider, model, built_ms)
VALUES (:sweep_id, :run_id, :lane, :provider, :model, :now_ms) RETURNING id;

-- advance_batch --
UPDATE batch SET stage = :stage, marker = coalesce(:marker, marker), count = coalesce(:count, count),
    bytes = coalesce(:bytes, bytes), tokens = coalesce(:tokens, tokens), file_id = coalesce(:file_id, file_id),
    remote_id = coalesce(:remote_id, remote_id), remote = coalesce(:remote, remote), reason = coalesce(:reason, reason),
    created_ms = iif(:stage = 'creating', :now_ms, created_ms), ended_ms = iif(:stage = 'ended', :now_ms, ended_ms),
    closed_ms = iif(:stage IN ('closed', 'dropped'), :now_ms, closed_ms)
WHERE id = :batch_id AND stage = :before RETURNING id;

-- note_batch --
UPDATE batch SET remote = :remote, cancelled = max(cancelled, :cancelled) WHERE id = :batch_id;

-- remote_ids --
SELECT remote_id FROM batch WHERE provider = :provider AND remote_id <> '';

-- live_batches --
SELECT id, lane, provider, model, stage, marker, count, bytes, tokens, file_id, remote_id, remote, cancelled,
    coalesce(created_ms, 0), coalesce(ended_ms, 0)
FROM batch WHERE sweep_id = :sweep_id AND stage NOT IN ('closed', 'dropped') ORDER BY id;

-- ready_for_batch --
SELECT count(*), coalesce(sum(size), 0) FROM (
    SELECT size FROM request r WHERE sweep_id = :sweep_id AND lane = :lane AND state = 'planned' AND owner IS NULL
        AND (:aliases IS NULL OR alias IN (SELECT value FROM json_each(:aliases)))
        AND NOT EXISTS (SELECT 1 FROM json_each(:skip) s WHERE s.value = r.alias || char(10) || r.stage)
    LIMIT :most);

-- stages_ready --
SELECT DISTINCT stage FROM request WHERE sweep_id = :sweep_id AND lane = :lane AND state = 'planned' AND owner IS NULL
    AND (:aliases IS NULL OR alias IN (SELECT value FROM json_each(:aliases)));

-- any_pending --
SELECT EXISTS (SELECT 1 FROM json_each(:stages) s CROSS JOIN request r ON r.sweep_id = :sweep_id AND r.stage = s.value
        AND r.state = 'planned')
    OR EXISTS (SELECT 1 FROM spend WHERE sweep_id = :sweep_id AND reserved_tokens > 0
        AND stage IN (SELECT value FROM json_each(:stages)));

-- batch_candidates --
SELECT r.id, r.key, r.stage, r.alias, r.attempts, r.size, r.messages, r.priority, p.body
FROM request r JOIN prompt p ON p.request_id = r.id
WHERE r.sweep_id = :sweep_id AND r.lane = :lane AND r.state = 'planned' AND r.owner IS NULL
    AND (r.priority, r.id) > (:priority, :after)
    AND (:aliases IS NULL OR r.alias IN (SELECT value FROM json_each(:aliases)))
    AND NOT EXISTS (SELECT 1 FROM json_each(:skip) s WHERE s.value = r.alias || char(10) || r.stage)
ORDER BY r.priority, r.id LIMIT :most;

-- enlist_attempts --
INSERT INTO attempt (request_id, number, run_id, sweep_id, provider, alias, stage, reserved_nano, reserved_tokens, sent_ms,
    batch_id, line)
SELECT r.id, r.attempts + 1, :run_id, r.sweep_id, r.provider, r.alias, r.stage, t.value ->> 2, t.value ->> 3, :now_ms,
    :batch_id, t.value ->> 1
FROM json_each(:rows) t CROSS JOIN request r ON r.id = t.value ->> 0 AND r.state = 'planned' AND r.owner IS NULL;

-- enlist_requests --
UPDATE request SET state = 'sent', attempts = attempts + 1
WHERE id IN (SELECT request_id FROM attempt WHERE batch_id = :batch_id AND line >= :first);

-- enlisted --
SELECT line FROM attempt WHERE batch_id = :batch_id AND line >= :first;

-- refuse_request --
UPDATE request SET state = 'failed', error_class = :error_class, error = :error
WHERE id = :request_id AND state = 'planned' AND owner IS NULL;

-- open_lines --
SELECT a.line, a.request_id, a.number, r.key, r.stage, r.alias, r.failures, r.throttles, a.reserved_nano, a.reserved_tokens,
    c.id, c.stage, c.coords
FROM json_each(:lines) t CROSS JOIN attempt a ON a.batch_id = :batch_id AND a.line = t.value
    CROSS JOIN request r ON r.id = a.request_id
    LEFT JOIN cell c ON c.request_id = a.request_id AND c.sweep_id = :sweep_id AND c.reading_status IS NULL
WHERE a.outcome = 'open';

-- open_line_numbers --
SELECT line FROM attempt WHERE batch_id = :batch_id AND outcome = 'open' AND line > :after ORDER BY line LIMIT :most;

-- lines_at --
SELECT place, line
FROM (SELECT line, row_number() OVER (ORDER BY line) AS place FROM attempt WHERE batch_id = :batch_id)
WHERE place IN (SELECT value FROM json_each(:places));

-- batch_reserved --
SELECT alias, stage, count(*), sum(reserved_nano), sum(reserved_tokens)
FROM attempt WHERE batch_id = :batch_id AND outcome = 'open' GROUP BY alias, stage;

-- release_batch_requests --
UPDATE request SET state = 'planned'
WHERE id IN (SELECT request_id FROM attempt WHERE batch_id = :batch_id AND outcome = 'open') AND state IN (@RETRY@)
    AND EXISTS (SELECT 1 FROM batch WHERE id = :batch_id AND stage = :before);

-- release_batch_attempts --
UPDATE attempt SET outcome = 'error', settled_ms = :now_ms, error_class = :error_class, error = :error
WHERE batch_id = :batch_id AND outcome = 'open' AND EXISTS (SELECT 1 FROM batch WHERE id = :batch_id AND stage = :before);

-- move_to_lane --
UPDATE request SET lane = :lane WHERE id IN (SELECT value FROM json_each(:ids)) AND state = 'planned';
