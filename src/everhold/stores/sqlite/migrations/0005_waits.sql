-- A wait that one model asked for does not hold up another that is asked instead: whose wish it is stands with it.
alter table lanes add column whom text not null default '';
