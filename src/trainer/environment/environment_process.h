// One process of an environment program.
#pragma once

#include <poll.h>

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "trainer/environment/environment.h"
#include "trainer/environment/program_environment.h"
#include "trainer/environment/protocol.h"
#include "trainer/reward/external/line_process.h"

namespace tdock::environment {

// Not thread-safe. No call waits, but for a process that is killed and for the destructor, which gives it 2 s to end.
class EnvironmentProcess {
 public:
  // Starts it and says hello. `options` must outlive it.
  static absl::StatusOr<std::unique_ptr<EnvironmentProcess>> Start(const ProgramEnvironmentOptions& options);

  // What it says it is; nothing before its hello.
  const std::optional<Hello>& hello() const { return hello_; }
  size_t playing() const { return playing_.size(); }
  bool has_room() const { return hello_ && playing_.size() < static_cast<size_t>(hello_->episodes); }

  // Begins an episode with this line, a reset or a run.
  void Begin(EpisodeId episode, absl::string_view line);
  // Only for episodes that it plays.
  void Step(EpisodeId episode, absl::string_view line);
  // Its next observation is the last one.
  void Conclude(EpisodeId episode, absl::string_view line);
  // An agent of a URL has asked its endpoint.
  void NoteRequest(EpisodeId episode, int64_t request);
  // Does nothing for a request that is not open. An empty line is not sent: the endpoint has answered.
  void Answer(EpisodeId episode, int64_t request, absl::string_view line);
  void End(EpisodeId episode);

  // Writes and reads what is possible at once, and adds what it has said to `events`. An error says why it is dead now;
  // its episodes are then lost.
  absl::Status Serve(std::vector<Event>& events);
  // Once Serve() has failed: the episodes it played, and which of them waited too long, if that is why.
  std::vector<EpisodeId> episodes() const;
  const std::optional<EpisodeId>& late() const { return late_; }

  // When Serve() will find that something has not come in time.
  absl::Time deadline() const;
  // See reward::LineProcess.
  std::array<pollfd, 3> Watched() const { return process_->Watched(); }
  void CloseInput() { process_->CloseInput(); }

 private:
  // Something that is due by a time. It gets its time again, once, if bytes have moved after the first: then nobody has
  // looked at the process meanwhile, or what it says is long.
  struct Due {
    absl::Time by = absl::InfiniteFuture();
    bool extended = false;
  };
  struct Playing {
    Due due;                     // its next event; InfiniteFuture while it waits for the host
    std::set<int64_t> requests;  // of an agent, that are open
    bool concluding = false;
  };

  EnvironmentProcess(const ProgramEnvironmentOptions& options, std::unique_ptr<reward::LineProcess> process);

  void Send(absl::string_view line);
  absl::Status TakeLine(absl::string_view line, std::vector<Event>& events);
  // Errors for what this episode cannot say now.
  absl::Status Note(const Event& event, Playing& playing);
  absl::Status CheckDue();
  bool IsLate(Due& due, absl::Duration again) const;

  const ProgramEnvironmentOptions& options_;
  const std::unique_ptr<reward::LineProcess> process_;
  std::optional<Hello> hello_;
  Due hello_due_;
  std::map<EpisodeId, Playing> playing_;
  std::deque<EpisodeId> over_;  // the last ones: what they said before the program knew that means nothing
  std::optional<EpisodeId> late_;
  absl::Time moved_ = absl::InfinitePast();  // when bytes have moved last
};

}  // namespace tdock::environment
