-- What was compressed last, wherever: for a glance at all sessions, without walking past everything else.
create index entries_folds on entries(pos) where kind = 'folded';
