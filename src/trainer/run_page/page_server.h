// A server of the page of runs: http://HOST:PORT/ shows them, and goes on showing what they write.
//
//   GET /                      the page, which loads nothing from elsewhere
//   GET /api/runs              {"single": whether the folder is that of a run, "runs": RunFollower::Summary() of each}
//   GET /api/run?run=NAME      RunFollower::Since(0) of one
//   GET /events?run=NAME       events of one run:  "run" (RunFollower::Since), "moment" (RunExplanation as JSON, or
//                              {"problem"}), "machine" (MachineLoad::Now)
//   GET /events?tags=A,B       events of all: "runs" ({"names", "runs": summaries that changed, "tags": names of all
//                              metrics, "series": RunFollower::MetricSince of A and B}), "machine"
//
// Events are server-sent ones. Their ids say what a client has seen: one that connects again with Last-Event-ID gets
// what is new since then. A slow client gets fewer and larger events, and never holds up another; the events of clients
// that are told the same are made once.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/env.h"

namespace tdock::trainer {

struct PageOptions {
  std::string folder = {};         // of a run, or of runs, up to three folders deep; empty: see Follow()
  std::string host = "127.0.0.1";  // an address of this machine's
  int port = 0;                    // 0 picks a free one
  absl::Duration interval = absl::Milliseconds(500);  // between looks at the folders
  std::function<void(const std::string&)> log = {};   // gets a sentence if the page cannot be reached any more
};

// Thread-safe.
class PageServer {
 public:
  // NotFound if the folder is not there, Unavailable and InvalidArgument as http::Server::Start() has them. `env` must
  // outlive it.
  static absl::StatusOr<std::unique_ptr<PageServer>> Start(Env& env, PageOptions options);
  virtual ~PageServer() = default;

  virtual int port() const = 0;
  // Shows the run in this folder from now on, alone; its files may come later.
  virtual void Follow(const std::string& run_dir) = 0;
  // Where a browser on this machine finds it.
  virtual std::string url() const = 0;
  // Texts of events and answers that were made so far: one, however many clients are told the same.
  virtual int64_t texts_made() const = 0;
};

// Of "8080", ":8080" and "HOST:8080", with [::1] for an IPv6 address: both parts; 127.0.0.1 where there is no host.
// InvalidArgument says what would be right.
struct PageAddress {
  std::string host = "127.0.0.1";
  int port = 0;
};
absl::StatusOr<PageAddress> ParsePageAddress(const std::string& text);

// Serves the page of `folder` at an address that ParsePageAddress() reads. `log` gets a warning if machines other than
// this one can read the page. Errors name the port to try instead.
absl::StatusOr<std::unique_ptr<PageServer>> OpenPage(const std::string& folder, const std::string& address,
                                                     const std::function<void(const std::string&)>& log);

}  // namespace tdock::trainer
