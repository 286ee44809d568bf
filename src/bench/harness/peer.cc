#include "bench/harness/peer.h"

#include <signal.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace tdock::bench {
namespace {

constexpr absl::Duration kLongestRun = absl::Minutes(10);

}  // namespace

absl::StatusOr<std::unique_ptr<Peer>> Peer::Start(const std::string& command, const std::string& benchmark,
                                                  const Settings& settings) {
  const std::string script = absl::StrCat("exec ", command, " \"$@\"");
  std::vector<std::string> arguments = {
      "/bin/sh", "-c", script, command, benchmark, "--threads", absl::StrCat(settings.threads)};
  if (settings.quick) arguments.push_back("--quick");
  TDOCK_ASSIGN_OR_RETURN(auto process, ChildProcess::Start(arguments));
  std::unique_ptr<Peer> peer(new Peer(command, std::move(process)));
  TDOCK_RETURN_IF_ERROR(peer->NextLine().status());
  return peer;
}

absl::StatusOr<std::string> Peer::NextLine() {
  absl::StatusOr<std::string> line = process_->ReadLine(kLongestRun);
  if (!line.ok()) return Annotate(line.status(), absl::StrCat("the peer '", command_, "'"));
  return line;
}

absl::StatusOr<Figure> Peer::Run() {
  process_->Signal(SIGUSR1);
  TDOCK_ASSIGN_OR_RETURN(const std::string line, NextLine());
  double figure = 0;
  if (absl::SimpleAtod(line, &figure)) return Figure(figure);
  return absl::InvalidArgumentError(absl::StrCat("the peer '", command_, "' wrote '", line, "' instead of a figure"));
}

}  // namespace tdock::bench
