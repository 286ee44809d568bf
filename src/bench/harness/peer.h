// An external program that benchmarks alternate with.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "bench/harness/benchmark.h"
#include "core/base/child_process.h"

namespace tdock::bench {

// The shell starts the program with the benchmark's name, `--threads N`, and perhaps `--quick`. It writes a line when
// it is ready, and after each SIGUSR1 one run's figure, in the benchmark's unit, as a line. Not thread-safe.
class Peer {
 public:
  static absl::StatusOr<std::unique_ptr<Peer>> Start(const std::string& command, const std::string& benchmark,
                                                     const Settings& settings);
  absl::StatusOr<Figure> Run();

 private:
  Peer(std::string command, std::unique_ptr<ChildProcess> process)
      : command_(std::move(command)), process_(std::move(process)) {}

  // What the program writes next. Errors name it.
  absl::StatusOr<std::string> NextLine();

  const std::string command_;
  const std::unique_ptr<ChildProcess> process_;
};

}  // namespace tdock::bench
