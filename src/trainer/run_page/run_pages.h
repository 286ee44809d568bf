// Answers and events for the page of runs, from folders that are followed.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "core/base/env.h"
#include "core/base/mutex.h"
#include "core/http/server.h"
#include "trainer/run_page/machine_load.h"
#include "trainer/run_page/run_follower.h"
#include "trainer/run_page/run_moments.h"

namespace tdock::trainer {

// A folder that is a run, or has some.
struct RunFolder {
  std::string path = {};
  bool single = false;

  // By the names that the page has for them.
  std::map<std::string, std::string> Find(Env& env) const;
};

// Texts that are made once for all who are told the same. Not thread-safe.
class SharedTexts {
 public:
  using Text = std::shared_ptr<const std::string>;
  // The kind of text, whose it is, and the event that its reader has seen.
  using Key = std::tuple<char, std::string, uint64_t>;

  // The text of this key, which `make` makes if it is not known.
  Text Get(Key key, const std::function<std::string()>& make);
  // Forgets all texts unless they are of this version.
  void BeOf(uint64_t version);

  int64_t made() const { return made_; }

 private:
  uint64_t version_ = 0;
  std::map<Key, Text> texts_;
  size_t bytes_ = 0;
  std::atomic<int64_t> made_ = 0;
};

// One thread does all of it; handlers only hand requests to it. A request that is answered with what all runs have in
// common is answered before those that need a whole run, and before events are told; each of these stops after a while
// so that others have their turn. Thread-safe.
class RunPages {
 public:
  // `env` must outlive it. `interval` is from one look at the folders to the next. Beyond `max_clients` who listen to
  // events, others are told to come again.
  RunPages(Env& env, RunFolder folder, std::chrono::milliseconds interval, size_t max_clients);
  ~RunPages() { Finish(); }
  RunPages(const RunPages&) = delete;
  RunPages& operator=(const RunPages&) = delete;

  // Tells all clients what is left to tell, and ends what they listen to.
  void Finish() TDOCK_EXCLUDES(mu_);
  // Shows the run in this folder from now on, alone.
  void Follow(const std::string& run_dir) TDOCK_EXCLUDES(mu_);
  // Answers a request for /api/runs, /api/run or /events.
  void Post(std::shared_ptr<http::Exchange> exchange) TDOCK_EXCLUDES(mu_);

  // Texts made so far: however many clients are told the same, it is one.
  int64_t texts_made() const { return texts_.made(); }

 private:
  using SteadyTime = std::chrono::steady_clock::time_point;
  using Text = SharedTexts::Text;

  // Someone who listens to events.
  struct Client {
    std::shared_ptr<http::Exchange> exchange = {};
    std::string run = {};                // empty: all of them
    std::vector<std::string> tags = {};  // whose curves it shows of all
    uint64_t seen = 0;
    uint64_t machine = 0, moment = 0;  // which ones it has got
    SteadyTime heard = {};
  };

  void Work() TDOCK_EXCLUDES(mu_);
  // Takes what others have asked for. False if it must end.
  bool TakeAsked(bool wait, std::vector<std::shared_ptr<http::Exchange>>& asked) TDOCK_EXCLUDES(mu_);
  void Answer(const std::shared_ptr<http::Exchange>& exchange);
  void Listen(const std::shared_ptr<http::Exchange>& exchange, std::string run, const std::string& tags);
  // Answers with whole runs until time is up. True if there are more.
  bool AnswerDear();
  // Reads the runs in turn, from the one on that was to be next, until all have been looked at or time is up. True if
  // there is more to read at once.
  bool PollSome();
  // Tells clients in turn what is new, in rounds: until all have been told or time is up. True if there are more.
  bool TellSome();
  void BeginRound();
  void TellTheEnd() TDOCK_EXCLUDES(mu_);
  void FindNewRuns();
  void RemoveClientsThatAreGone();
  void LookAtMachine();
  void TellClient(Client& client);

  std::string Id(uint64_t number) const;
  // Summaries of the runs that have changed, as a list of JSON.
  Text Summaries(uint64_t seen);
  Text WholeRun(const std::string& name);
  // Events; empty if there is nothing new.
  Text NewsOfRun(const RunFollower& run, uint64_t seen);
  Text NewsOfAll(const std::vector<std::string>& tags, uint64_t seen);

  Env& env_;
  RunFolder folder_;
  const std::chrono::milliseconds interval_;
  const size_t max_clients_;
  Sequence sequence_;
  std::map<std::string, std::unique_ptr<RunFollower>> runs_;
  uint64_t names_changed_ = 0;
  SharedTexts texts_;
  std::vector<Client> clients_;
  size_t next_client_ = 0;                            // whose turn it is to be told
  size_t unread_bytes_ = 0;                           // of all clients
  std::deque<std::shared_ptr<http::Exchange>> dear_;  // requests for whole runs
  uint64_t told_ = 0;                                 // the event up to which clients have been told
  std::map<std::string, RunMoments::Run> watched_;
  RunMoments moments_;
  MachineLoad machine_load_;
  std::string machine_;  // the last event
  uint64_t machine_number_ = 0;
  SteadyTime now_ = std::chrono::steady_clock::now(), next_find_ = {}, next_machine_ = {}, next_tell_ = {},
             next_round_ = {};
  SteadyTime next_poll_ = {};
  bool more_to_read_ = true;  // of the runs
  std::string next_run_;      // whose turn it is to be read
  const std::string epoch_;

  Mutex mu_;
  CondVar changed_;
  std::vector<std::shared_ptr<http::Exchange>> asked_ TDOCK_GUARDED_BY(mu_);
  std::optional<RunFolder> next_folder_ TDOCK_GUARDED_BY(mu_);
  bool ending_ TDOCK_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace tdock::trainer
