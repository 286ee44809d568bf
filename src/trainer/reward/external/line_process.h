// A process that is talked with in lines.
#pragma once

#include <poll.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/supervised_process.h"
#include "trainer/reward/external/log_lines.h"

namespace tdock::reward {

inline constexpr size_t kMostLineBytes = 16 << 20;

struct LineProcessOptions {
  std::string who;                          // in front of what it writes to its standard error
  std::vector<std::string> arguments;       // the program itself first
  absl::string_view script = {};            // for the ScriptReader among them
  int64_t memory_bytes = 0;                 // of it with its children; 0: no limit
  LogSink log = [](const std::string&) {};  // lines of its standard error; thread-safe
};

// Not thread-safe. Bytes move only in Move(), Died() and the destructor.
class LineProcess {
 public:
  static absl::StatusOr<std::unique_ptr<LineProcess>> Start(const LineProcessOptions& options);
  // Closes its input, and kills it if it does not end within 2 s.
  ~LineProcess();
  LineProcess(const LineProcess&) = delete;
  LineProcess& operator=(const LineProcess&) = delete;

  // Asks it not to read more. The destructor then waits less if several are asked first.
  void CloseInput() { process_->CloseInput(); }

  // Adds to what Move() writes; with the ends of lines.
  void Send(absl::string_view lines) { input_.append(lines.data(), lines.size()); }
  // The next whole line that was read, without its end; nothing if there is none yet. Errors are those of Died(), for
  // a line of more than kMostLineBytes and for the end of its output.
  absl::StatusOr<std::optional<std::string>> NextLine();
  // Writes and reads some, once that is possible. DeadlineExceeded.
  absl::Status Move(absl::Time deadline);
  // What poll() must watch: Move() has something to do once one of these is ready.
  std::array<pollfd, 3> Watched() const { return process_->Watched(!input_.empty()); }

  void Kill() { process_->Kill(); }
  // Kills it: `status` with how the process has ended, if by itself, and its last words on standard error.
  absl::Status Died(const absl::Status& status);

 private:
  LineProcess(const LineProcessOptions& options, std::unique_ptr<SupervisedProcess> process)
      : stderr_(options.who, options.log), process_(std::move(process)) {}

  LogLines stderr_;
  const std::unique_ptr<SupervisedProcess> process_;
  std::string input_;    // what it has not yet accepted
  std::string read_;     // behind the last whole line
  size_t searched_ = 0;  // bytes of it without the end of a line
};

}  // namespace tdock::reward
