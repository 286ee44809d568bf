// The budget of a partition.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "tdock/dock.h"

namespace tdock::dock {

// What a put of new rows needs.
struct Claim {
  // The rows of the groups that it begins, and rows without a group.
  int64_t rows = 0;
  // Of the batch.
  int64_t bytes = 0;
};

// Counts published rows and puts in progress. Every row that was admitted counts for at least its reserved bytes:
// row_bytes of the options, or the average of all rows. Not thread-safe.
class Budget {
 public:
  explicit Budget(const PartitionOptions& options)
      : max_rows_(options.max_rows), max_bytes_(options.max_bytes), row_bytes_(options.row_bytes) {}

  bool limited() const { return max_rows_ > 0 || max_bytes_ > 0; }
  bool limits_bytes() const { return max_bytes_ > 0; }

  // The current usage, for the questions below.
  struct Use {
    int64_t rows = 0;     // including the missing rows of incomplete groups
    int64_t held = 0;     // bytes of blocks, including those that only views hold
    RowId rows_ever = 0;  // rows ever made
    int64_t rows_here = 0;
  };

  // ResourceExhausted if the claim alone exceeds the budget.
  absl::Status CheckEver(const Claim& claim, const Use& use) const;
  bool FitsRows(const Claim& claim, const Use& use) const {
    return max_rows_ == 0 || use.rows + pending_.rows + claim.rows <= max_rows_;
  }
  bool Fits(const Claim& claim, const Use& use) const {
    return FitsRows(claim, use) && (max_bytes_ == 0 || Charged(use) + Needed(claim, use) <= max_bytes_);
  }
  // What is full, for people to read.
  std::string Explain(const Claim& claim, const Use& use) const;

  // An admitted put is in progress, and is later published or abandoned.
  void Begin(const Claim& claim);
  void End(const Claim& claim);

  // Payload of published cells, minus that of the cells that they replace; and of cells removed with their rows.
  void CountPut(int64_t bytes) { live_bytes_ += bytes; }
  void CountGone(int64_t bytes) {
    live_bytes_ -= bytes;
    gone_bytes_ += bytes;
  }
  int64_t gone_bytes() const { return gone_bytes_; }

 private:
  int64_t BytesOfRow(const Use& use) const;
  int64_t Needed(const Claim& claim, const Use& use) const;
  // Held, plus reserved for the future cells of existing rows.
  int64_t Charged(const Use& use) const;

  const int64_t max_rows_, max_bytes_, row_bytes_;
  Claim pending_;
  int64_t live_bytes_ = 0;
  int64_t gone_bytes_ = 0;
};

}  // namespace tdock::dock
