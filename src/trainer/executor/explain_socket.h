// A run that is alive tells what it does at this moment, through a Unix socket in its folder.
//
//   tdock explain RUN ── connects ──► RUN/explain.socket, mode 0600
//                     ── "text\n" or "json\n" ──►
//                     ◄── the answer, until the connection ends ──
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace tdock::trainer {

inline constexpr char kExplainSocket[] = "explain.socket";

enum class ExplainForm { kText, kJson };

// Answers, one caller after the other, on a thread of its own while the object lives.
class RunExplainer {
 public:
  // Called by that thread. Must not wait for what a stage holds.
  using Explain = std::function<std::string(ExplainForm)>;

  // Makes the socket in the folder of a run that this process has locked: one that is there is left from a process
  // that was killed, and is replaced. AlreadyExists if anything else has its name; the folder's path may be longer than
  // that of a socket. Of a caller that sends more than a request, or does not get on for two seconds, the connection is
  // closed.
  static absl::StatusOr<std::unique_ptr<RunExplainer>> Start(const std::string& run_dir, Explain explain);
  // Removes the socket.
  ~RunExplainer();
  RunExplainer(const RunExplainer&) = delete;
  RunExplainer& operator=(const RunExplainer&) = delete;

 private:
  RunExplainer(int folder, int socket, int wake, Explain explain);

  void Serve() const;

  const int folder_, socket_, wake_;
  const Explain explain_;
  std::thread thread_;
};

// What the run in the folder says. NotFound if there is no such folder, or no socket in it; Unavailable if no process
// listens there; DeadlineExceeded if the answer is not there within `patience`; ResourceExhausted if it is longer than
// 16 MiB.
absl::StatusOr<std::string> AskRun(const std::string& run_dir, ExplainForm form, absl::Duration patience);

}  // namespace tdock::trainer
