// Rows of varying length as rows of one length, and back. Names in parentheses are those of the functions that do the
// same in MindSpeed-RL. Pure functions, thread-safe; they never modify their arguments, and errors name the column or
// row.
//
// "Rows" below are those of a ragged or a dense column; the length of a dense row is its first dimension (of a scalar:
// 1). Later dimensions stay unchanged. InvalidArgument for bytes columns, and for more than 2^28 dense rows of length
// 0.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "tdock/batch.h"
#include "tdock/column.h"

namespace tdock {

enum class PadSide { kLeft, kRight };

struct PadOptions {
  // For integers; 0 is an id like any other. Floats are padded with 0.0, bools with false.
  int64_t pad_id = 0;
  // The width is rounded up to a multiple of this.
  int64_t multiple = 1;
  PadSide side = PadSide::kRight;
};

// Dense int64[]: the length of each row.
absl::StatusOr<Column> Lengths(const Column& rows);

// Rows as dense [width, …], where width is the length of the longest row, rounded up. InvalidArgument if the pad id
// does not fit the element type, the multiple is not positive, or the result would exceed 2^36 bytes.
absl::StatusOr<Column> PadRows(const Column& rows, const PadOptions& options = {});

// The inverse, ragged: the first lengths[i] items of row i if padding is on the right, otherwise the last. `lengths` is
// dense int32 or int64, [] or [1]. InvalidArgument if the number of lengths differs from that of rows, or if one is
// negative or exceeds its row. (truncate_rows)
absl::StatusOr<Column> UnpadRows(const Column& rows, const Column& lengths, PadSide side = PadSide::kRight);

// Ragged: each row up to its first `pad_id`. If that is also the `eos_id`, it is kept, since it ends the response; rows
// without one stay whole. For integers in one dimension. (remove_padding_and_split_to_list)
absl::StatusOr<Column> CutAtPad(const Column& rows, int64_t eos_id, int64_t pad_id);

// Columns of one width each.
struct PaddedColumns {
  Batch columns;
  // Dense int64[]: the lengths of all rows of the first column, then those of the second, and so on. Unset if there is
  // nothing to unpad.
  std::optional<Column> original_length;
};

// Pads every column on the right with zeros; UnpadColumns is the inverse and gives ragged columns. Without columns, the
// result has none.
// (padding_dict_to_tensor_dict, remove_padding_tensor_dict_to_dict)
absl::StatusOr<PaddedColumns> PadColumns(const Batch& columns);
absl::StatusOr<Batch> UnpadColumns(const PaddedColumns& padded);

// Pads every column as PadRows does, except that masks, whose name ends in "mask", are padded with 0; "prompt_length",
// "response_length" and "age", which must have one value in each row, become dense [1]; bytes and dense scalars stay
// unchanged. (pad_experience)
absl::StatusOr<Batch> PadExperience(const Batch& columns, const PadOptions& options);

// "prompts", each prompt `n` times in succession, and "prompt_length", dense int64[1]. InvalidArgument if `n` is
// negative, or if the result would exceed 2^28 rows or 2^36 bytes of prompts. (put_prompts_experience)
absl::StatusOr<Batch> RepeatPrompts(const Column& prompts, int64_t n);

}  // namespace tdock
