// How much a partition may hold.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "tdock/dock.h"

namespace tdock {

// What a put of new rows needs.
struct Claim {
  // Those of the groups that it begins, and those without a group.
  int64_t rows = 0;
  // Of the batch.
  int64_t bytes = 0;
};

// Counts what is there and what is under way. A row that was let in has a right to its bytes, those that are not put
// yet included: as many as the options say, or as rows have on average. Not thread-safe.
class Budget {
 public:
  explicit Budget(const PartitionOptions& options)
      : max_rows_(options.max_rows), max_bytes_(options.max_bytes), row_bytes_(options.row_bytes) {}

  bool limited() const { return max_rows_ > 0 || max_bytes_ > 0; }
  bool limits_bytes() const { return max_bytes_ > 0; }

  // What is there, for the questions below.
  struct Use {
    int64_t rows = 0;     // those of incomplete groups that are to come included
    int64_t held = 0;     // bytes of blocks, pinned ones included
    RowId rows_ever = 0;  // that were made
    int64_t rows_here = 0;
  };

  // ResourceExhausted if the claim is above the budget by itself.
  absl::Status CheckEver(const Claim& claim, const Use& use) const;
  bool FitsRows(const Claim& claim, const Use& use) const {
    return max_rows_ == 0 || use.rows + pending_.rows + claim.rows <= max_rows_;
  }
  bool Fits(const Claim& claim, const Use& use) const {
    return FitsRows(claim, use) && (max_bytes_ == 0 || Charged(use) + Needed(claim, use) <= max_bytes_);
  }
  // For people: what is full.
  std::string Explain(const Claim& claim, const Use& use) const;

  // A put that was let in is under way, and is published or given up.
  void Begin(const Claim& claim);
  void End(const Claim& claim);

  // Payload of cells that are published, less that of those that they replace; and of cells that go with their rows.
  void CountPut(int64_t bytes) { live_bytes_ += bytes; }
  void CountGone(int64_t bytes) {
    live_bytes_ -= bytes;
    gone_bytes_ += bytes;
  }

 private:
  int64_t BytesOfRow(const Use& use) const;
  int64_t Needed(const Claim& claim, const Use& use) const;
  // Held, and reserved for what rows will get yet.
  int64_t Charged(const Use& use) const;

  const int64_t max_rows_, max_bytes_, row_bytes_;
  Claim pending_;
  int64_t live_bytes_ = 0;
  int64_t gone_bytes_ = 0;
};

}  // namespace tdock
