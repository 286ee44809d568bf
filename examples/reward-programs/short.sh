#!/bin/sh
# A reward program in a shell: 1 for a completion of at most $1 bytes (default 100), else 0. docs/rewards.md has the protocol.
# It needs no reader of JSON: each quote within a text of JSON is behind a backslash, so that a key is found as it is.
most=${1:-100}

while IFS= read -r line; do
  case $line in
    *'"samples":['*) ;;
    *)
      printf '{"type":"hello","protocol":1,"name":"short"}\n'
      continue
      ;;
  esac
  printf '%s\n' "$line" | LC_ALL=C awk -v most="$most" '
    {
      match($0, /"batch":[0-9]+/)
      batch = substr($0, RSTART + 8, RLENGTH - 8)
      gsub(/"columns":\{("([^"\\]|\\.)*"[:,]?)*\}/, "")  # whose names are those of the data
      rest = $0
      # Each sample has one number and one completion, in any order.
      while (match($0, /"completion":"([^"\\]|\\.)*"/)) {
        text = substr($0, RSTART + 14, RLENGTH - 15)
        $0 = substr($0, RSTART + RLENGTH)
        gsub(/\\u[0-9a-f][0-9a-f][0-9a-f][0-9a-f]|\\./, "x", text)
        match(rest, /"sample":[0-9]+/)
        scores = scores (scores == "" ? "" : ",") "{" substr(rest, RSTART, RLENGTH) ",\"score\":" (length(text) <= most) "}"
        rest = substr(rest, RSTART + RLENGTH)
      }
      printf "{\"type\":\"scores\",\"batch\":%s,\"scores\":[%s]}\n", batch, scores
    }'
done
