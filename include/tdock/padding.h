// Rows of varying length as rows of one length, and back. Names in parentheses are those of the functions that do the
// same in MindSpeed-RL. Pure functions, thread-safe; rows are never written through, and errors name the column or row.
//
// "Rows" below are those of a ragged column, or of a dense one, whose rows are as long as the first of their dimensions
// (a scalar: 1). Later dimensions stay as they are. Bytes have no rows in this sense: InvalidArgument. Nor may there be
// more than 2^28 dense rows of length 0.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "tdock/batch.h"
#include "tdock/column.h"

namespace tdock {

enum class PadSide { kLeft, kRight };

struct PadOptions {
  // Pads integers; 0 is an id like any other. Floats are padded with 0.0, bools with false.
  int64_t pad_id = 0;
  // The width is rounded up to a multiple of this.
  int64_t multiple = 1;
  PadSide side = PadSide::kRight;
};

// Dense int64[]: the length of each row.
absl::StatusOr<Column> Lengths(const Column& rows);

// Rows as dense [width, …], where width is that of the longest row, rounded up. InvalidArgument if the pad id does not
// fit into the element type, the multiple is not positive, or the result would have more than 2^36 bytes.
absl::StatusOr<Column> PadRows(const Column& rows, const PadOptions& options = {});

// The inverse, ragged: of row i the first lengths[i] items if padding is on the right, else the last; none if that is
// 0. `lengths` is dense int32 or int64, [] or [1]. InvalidArgument if there are not as many lengths as rows, or one is
// negative or more than the row has. (truncate_rows)
absl::StatusOr<Column> UnpadRows(const Column& rows, const Column& lengths, PadSide side = PadSide::kRight);

// Ragged: each row up to its first `pad_id`. If that is also the `eos_id`, it stays, since it ends the answer; rows
// without one stay whole. For integers in one dimension. (remove_padding_and_split_to_list)
absl::StatusOr<Column> CutAtPad(const Column& rows, int64_t eos_id, int64_t pad_id);

// Columns of one width each.
struct PaddedColumns {
  Batch columns;
  // Dense int64[]: the lengths of all rows of the first column, then those of the second, and so on. Nothing if there
  // is nothing to unpad.
  std::optional<Column> original_length;
};

// Every column padded on the right with zeros, and its inverse, which gives ragged columns. No columns make no columns.
// (padding_dict_to_tensor_dict, remove_padding_tensor_dict_to_dict)
absl::StatusOr<PaddedColumns> PadColumns(const Batch& columns);
absl::StatusOr<Batch> UnpadColumns(const PaddedColumns& padded);

// Every column as PadRows does, but masks, whose name ends in "mask", are padded with 0; "prompt_length",
// "response_length" and "age", which must have one value in each row, become dense [1]; bytes and dense scalars stay
// as they are. (pad_experience)
absl::StatusOr<Batch> PadExperience(const Batch& columns, const PadOptions& options);

// "prompts", each `n` times, the copies after one another, and "prompt_length", dense int64[1]. InvalidArgument if `n`
// is negative, or if there would be more than 2^28 rows or 2^36 bytes of prompts. (put_prompts_experience)
absl::StatusOr<Batch> RepeatPrompts(const Column& prompts, int64_t n);

}  // namespace tdock
