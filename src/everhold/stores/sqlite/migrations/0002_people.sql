-- People. The log of people is append-only; `persons` and `identities` follow from it.
-- The log of sessions records identities, and a person is resolved when something is read.

create table people_log (
  n         integer primary key,
  at        real not null,
  by        text not null default '',
  action    text not null,
  person    text not null,
  identity  text not null default '',
  proof     text not null default '',
  since     real not null default 0,
  note      text not null default ''
);

create index people_log_unlinked on people_log(identity, person) where action = 'unlinked';

create table persons (
  id            text primary key,
  label         text not null default '',
  merged_into   text not null default '',
  forgotten_at  real not null default 0
) without rowid;
create unique index persons_label on persons(label) where label <> '';

alter table identities rename to identity_links;
create table identities (
  identity  text primary key,
  person    text not null,
  proof     text not null,
  since     real not null default 0,
  at        real not null,
  former    text not null default ''
) without rowid;
create index identities_person on identities(person);

-- The name of an identity in a memory, from an entry on. Rows are added and never changed.
create table peers (
  memory    text not null,
  agent     text not null,
  identity  text not null,
  from_pos  integer not null,
  peer      text not null,
  source    text not null default '',
  shared    integer not null default 0,
  primary key (memory, agent, identity, from_pos)
) without rowid;
create index peers_peer on peers(memory, agent, peer);

-- Schema 1 stamped entries with a person's name where the identity was linked, and on local platforms. Such a name is an
-- identity of that person now, beside the linked ones, so everything that was said before still belongs to them. People
-- without a name were known by an identity, and a link could lead to one that was linked itself.
create temp table link_ends as
  with recursive walk(identity, person, depth) as (
    select identity, person, 0 from identity_links
    union all
    select w.identity, l.person, w.depth + 1
      from walk w join identity_links l on l.identity = w.person where w.depth < 100
  )
  select identity, person as name, max(depth) as depth from walk group by identity;
create temp table old_names as
  select name, 'p_' || substr(lower(hex(randomblob(5))), 1, 10) as person, instr(name, ':') = 0 as is_label from (
    select name from link_ends
    union
    select substr(author, 8) from entries where author like 'person:_%' and instr(substr(author, 8), ':') = 0
  );
create temp table old_identities (identity text primary key, person text not null, at real not null);
insert or ignore into old_identities
  select l.identity, o.person, l.at
    from identity_links l join link_ends e on e.identity = l.identity join old_names o on o.name = e.name;
insert or ignore into old_identities select name, person, 0 from old_names;
insert or ignore into old_identities select 'local:' || name, person, 0 from old_names where is_label;
insert or ignore into old_identities select 'http:' || name, person, 0 from old_names where is_label;
insert into people_log(at, by, action, person, note)
  select 0, 'upgrade', 'made', person, iif(is_label, name, '') from old_names;
insert into people_log(at, by, action, person, identity, proof)
  select at, 'upgrade', 'linked', person, identity, 'operator' from old_identities;
drop table temp.link_ends;
drop table temp.old_names;
drop table temp.old_identities;
drop table identity_links;

insert into persons(id, label) select person, note from people_log where action = 'made';
insert into identities(identity, person, proof, at)
  select identity, person, proof, at from people_log where action = 'linked';
