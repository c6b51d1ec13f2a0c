-- Most jobs are done when they are claimed for the first time, and then all fences are 1: this is a fifth less work than fences.sql.
-- $2: fences, all the same.
fence = ($2::int[])[1]
