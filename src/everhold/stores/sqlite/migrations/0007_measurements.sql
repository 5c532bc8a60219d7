-- For counts by consumer, which monitoring reads. Few cursors fail, few dead letters exist and few receipts are in doubt,
-- so these indexes are small, and a commit that touches none of them writes none of them.
create index cursors_failing on cursors(consumer, due, attempts) where attempts > 0;
create index dead_letters_counted on dead_letters(consumer, in_doubt) where state = 'dead';
create index receipts_in_doubt on receipts(consumer) where in_doubt <> 0;
