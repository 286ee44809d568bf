// A batch of columns together with its metadata, and the algebra of such batches. docs/batch.md shows each operation by
// an example.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "tdock/batch.h"
#include "tdock/column.h"
#include "tdock/meta.h"

namespace tdock {

enum class RepeatOrder {
  kInterleaved,  // AABB: the copies of a row follow one another
  kTiled,        // ABAB: the copies of the batch follow one another
};

// An immutable value: operations return other batches, which share the columns' memory unless they change the order or
// the number of rows. Thread-safe. Operations on rows keep the meta unchanged. Errors name the column, the key or the
// row: NotFound for a column that does not exist, OutOfRange for a row, AlreadyExists for a duplicate name, and
// InvalidArgument for the rest.
class MetaBatch {
 public:
  MetaBatch() = default;
  explicit MetaBatch(Batch columns, Meta meta = {}) : columns_(std::move(columns)), meta_(std::move(meta)) {}

  const Batch& columns() const { return columns_; }
  const Meta& meta() const { return meta_; }
  // 0 without columns.
  int64_t rows() const { return columns_.rows(); }

  // The named columns, in the given order.
  absl::StatusOr<MetaBatch> Select(const std::vector<std::string>& names) const;

  struct Popped;
  // The named columns, in the given order, and the remaining ones; both with the meta.
  absl::StatusOr<Popped> Pop(const std::vector<std::string>& names) const;

  // Renames each column from the first name to the second, all at once: two columns may swap names.
  absl::StatusOr<MetaBatch> Rename(const std::vector<std::pair<std::string, std::string>>& names) const;

  // Rows [begin, begin + count).
  absl::StatusOr<MetaBatch> Slice(int64_t begin, int64_t count) const;
  // The given rows in the given order, repeats allowed.
  absl::StatusOr<MetaBatch> SelectRows(const std::vector<int64_t>& rows) const;
  // The rows where `mask`, dense bool[rows], is true.
  absl::StatusOr<MetaBatch> SelectWhere(const Column& mask) const;
  // Row i of the result is row permutation[i] of this batch. Every row must occur once.
  absl::StatusOr<MetaBatch> Reorder(const std::vector<int64_t>& permutation) const;
  // Every row `times` times; no rows if 0. InvalidArgument for more than 2^28 rows, or a column of more than 2^36
  // bytes.
  absl::StatusOr<MetaBatch> Repeat(int64_t times, RepeatOrder order) const;

  // The columns and the meta of both. Columns and keys that both have must be equal, columns byte by byte.
  absl::StatusOr<MetaBatch> Union(const MetaBatch& other) const;

  // All rows of one batch after another; the columns in the order of the first. The values of the meta keys `metrics`
  // become lists (ConcatMeta); other meta must be the same in all. InvalidArgument if there are no batches.
  static absl::StatusOr<MetaBatch> Concat(const std::vector<MetaBatch>& batches,
                                          const std::vector<std::string>& metrics = {"metrics"});

  // `count` batches of rows() / `count` rows, which must be a whole number. Concat() is the inverse, except for
  // metrics, which each chunk repeats. At most 2^20 chunks.
  absl::StatusOr<std::vector<MetaBatch>> Chunk(int64_t count) const;
  // Batches of `size` rows; the last may be shorter. Without rows: one empty batch. At most 2^20 batches.
  absl::StatusOr<std::vector<MetaBatch>> Split(int64_t size) const;

  // The same names in the same order, types, values (bytes) and meta.
  friend bool operator==(const MetaBatch& a, const MetaBatch& b);

 private:
  Batch columns_;
  Meta meta_;
};

struct MetaBatch::Popped {
  MetaBatch taken;
  MetaBatch rest;
};

// A batch padded with copies of its rows; the first real_rows() are the real ones. Immutable, thread-safe.
//
//   PaddedBatch padded = *PaddedBatch::ToDivisor(batch, ranks);      // 5 rows for 4 ranks: 0 1 2 3 4 0 1 2
//   … chunk padded.batch(), compute, concatenate to `result` …
//   MetaBatch real = *padded.Unpad(result);
class PaddedBatch {
 public:
  // Pads to the next multiple of `divisor` by repeating the rows from the first on, as often as needed. InvalidArgument
  // if `divisor` is not positive, or for more than 2^28 rows, or a column of more than 2^36 bytes.
  // (pad_dataproto_to_divisor)
  static absl::StatusOr<PaddedBatch> ToDivisor(const MetaBatch& batch, int64_t divisor);

  const MetaBatch& batch() const { return batch_; }
  int64_t real_rows() const { return real_rows_; }

  // Dense float32[], a weight for each row of batch(): 1 for a real one, 0 for padding. A loss that multiplies by it
  // and divides by its sum ignores the padding.
  Column Weights() const;

  // MetaBatch::Chunk; each chunk records which of its rows are real.
  absl::StatusOr<std::vector<PaddedBatch>> Chunk(int64_t count) const;

  // The real rows, sharing memory: of batch(), or of a result computed from it row by row. InvalidArgument if `result`
  // has another number of rows.
  MetaBatch Unpad() const;
  absl::StatusOr<MetaBatch> Unpad(const MetaBatch& result) const;

 private:
  PaddedBatch(MetaBatch batch, int64_t real_rows) : batch_(std::move(batch)), real_rows_(real_rows) {}

  MetaBatch batch_;
  int64_t real_rows_;
};

struct MiniBatchOptions {
  int64_t size = 1;  // in rows; divides the rows of the batch
  int64_t epochs = 1;
  // Each epoch has its own order, which depends only on the seed and the number of the epoch.
  uint64_t seed = 0;
  bool shuffle = true;
};

// A batch split into mini-batches of one size, each row once per epoch. Immutable, thread-safe: a run that stopped
// after `n` mini-batches resumes with Get(n).
class MiniBatches {
 public:
  // InvalidArgument if the size is not positive or does not divide the rows, if epochs is negative or too large, or for
  // more than 2^28 rows.
  static absl::StatusOr<MiniBatches> Of(MetaBatch batch, const MiniBatchOptions& options);

  int64_t per_epoch() const { return per_epoch_; }
  // Of all epochs.
  int64_t count() const { return per_epoch_ * options_.epochs; }

  // A copy of the rows of mini-batch `index`, which is in epoch `index` / per_epoch(). OutOfRange unless 0 ≤ index <
  // count(). Each call computes the order of the epoch again: O(rows of the batch) time and 8 bytes per row, however
  // small the mini-batch.
  absl::StatusOr<MetaBatch> Get(int64_t index) const;

 private:
  MiniBatches(MetaBatch batch, const MiniBatchOptions& options);

  MetaBatch batch_;
  MiniBatchOptions options_;
  int64_t per_epoch_;
};

}  // namespace tdock
