-- Whether anything of a stage is still to come: what is planned has an index, what is under way has set tokens aside.
DROP INDEX request_pending;
CREATE INDEX request_planned ON request (sweep_id, stage) WHERE state = 'planned';
