-- Curated facts are folded from all notes there are: few among many entries, and read without walking past the rest.
create index entries_notes on entries(pos) where kind in ('noted', 'erased');
