// The other processes of these benchmarks: `tdock-bench --worker KIND ARGUMENT…`.
//
//   echo                  answers each message of a connection with the same; prints its address first
//   call ADDRESS RANK     a worker of the controller at the address
//   weights ADDRESS       receives versions 1, 2 and so on of the weights through the dock at the address; prints
//                         "ready", and after each its checksum
//   reductions PORT RANK  a rank of a group that adds up gradients (reduction_runs.h)
//   memory PORT RANK RANKS  a rank that trains a large model (training_memory.h)
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/harness/benchmark.h"
#include "core/base/child_process.h"
#include "model/decoder/decoder.h"
#include "runtime/dispatch/method.h"
#include "tdock/meta_batch.h"

namespace tdock::bench {

inline constexpr int kCallWorkers = 8;
// To all of them, as it is; or its rows divided over them.
inline constexpr runtime::Method<runtime::PerRank<MetaBatch>(MetaBatch)> kEchoAll{"echo_all", runtime::Mode::kOneToAll};
inline constexpr runtime::Method<MetaBatch(MetaBatch)> kEchoRows{"echo_rows", runtime::Mode::kDpComputeProto};
// The type of message of a bare echo.
inline constexpr uint8_t kBareEcho = 64;

// A Llama whose weights are 500 MB of float32, or 4 MB; all of them are trained. Equal seeds give equal weights.
model::Decoder TransferredModel(bool quick, uint64_t seed);
inline constexpr char kReceiver[] = "rank-1";

// Starts this program as a worker, which is killed when the thread that calls this ends.
absl::StatusOr<std::unique_ptr<ChildProcess>> StartWorker(std::vector<std::string> arguments, bool quick);

// The work of such a process: returns when it is over, or has failed.
absl::Status RunWorker(const std::vector<std::string>& arguments, bool quick);

}  // namespace tdock::bench
