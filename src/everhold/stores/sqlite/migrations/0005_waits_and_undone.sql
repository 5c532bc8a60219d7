-- A wait that one model asked for does not hold up another that is asked instead: whose wish it is stands with it.
alter table lanes add column whom text not null default '';
-- Few turns are taken back: they are found among a long session's operations without walking past the others.
create index operations_undone on operations(session, first, last) where undone_at > 0;
