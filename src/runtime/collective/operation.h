// The operations of a group, and how errors name them and its ranks. For the implementations.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tdock::runtime {

struct Operation {
  enum class Kind {
    kBroadcast,
    kAllReduceMax,
    kBarrier,
    kAllReduceSum,
    kReduceScatterSum,
    kAllGather,
    kAllGatherBytes
  };
  Kind kind = Kind::kBarrier;
  int root = 0;  // of a broadcast

  friend bool operator==(const Operation&, const Operation&) = default;
};

inline std::string ToString(const Operation& operation) {
  switch (operation.kind) {
    case Operation::Kind::kBroadcast:
      return absl::StrCat("a broadcast from rank ", operation.root);
    case Operation::Kind::kAllReduceMax:
      return "a maximum of all ranks";
    case Operation::Kind::kBarrier:
      return "a barrier";
    case Operation::Kind::kAllReduceSum:
      return "a sum at all ranks";
    case Operation::Kind::kReduceScatterSum:
      return "a sum in parts";
    case Operation::Kind::kAllGather:
      return "a gathering of tensors";
    case Operation::Kind::kAllGatherBytes:
      return "a gathering of bytes";
  }
  return "";
}

// "rank 2 of 4", "ranks 1, 3 of 4".
inline std::string RanksText(const std::vector<int>& ranks, int size) {
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", absl::StrJoin(ranks, ", "), " of ", size);
}

}  // namespace tdock::runtime
