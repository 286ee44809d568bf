#include "trainer/run_page/run_moments.h"

#include <algorithm>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "trainer/executor/explain_socket.h"
#include "trainer/run_log/metrics_log.h"
#include "trainer/run_page/page_text.h"

namespace tdock::trainer {
namespace {

constexpr auto kAsk = std::chrono::seconds(1);
constexpr auto kAskAgainAfterFailure = std::chrono::seconds(5);
constexpr absl::Duration kPatience = absl::Milliseconds(500);

struct Said {
  std::string event;
  bool failed = false;
};

Said Ask(const RunMoments::Run& run) {
  LogRecord data = {{"stages", LogRecord::array()}};
  bool failed = false;
  if (run.at_work) {
    const absl::StatusOr<std::string> said = AskRun(run.path, ExplainForm::kJson, kPatience);
    LogRecord read = said.ok() ? LogRecord::parse(*said, nullptr, /*allow_exceptions=*/false) : LogRecord();
    failed = !read.is_object();
    if (!failed) {
      data = std::move(read);
    } else {
      data["problem"] = said.ok() ? "the run's answer cannot be read" : std::string(said.status().message());
    }
  }
  return {.event = EventText("moment", JsonText(data)), .failed = failed};
}

}  // namespace

RunMoments::RunMoments() : thread_([this] { Work(); }) {}

RunMoments::~RunMoments() {
  {
    const MutexLock lock(mu_);
    ending_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

void RunMoments::Watch(std::map<std::string, Run> runs) {
  const MutexLock lock(mu_);
  std::map<std::string, Entry> entries;
  for (auto& [name, run] : runs) {
    Entry& entry = entries[name];
    if (const auto known = runs_.find(name); known != runs_.end()) entry = std::move(known->second);
    if (entry.run.path != run.path || entry.run.at_work != run.at_work) entry.next = {};
    entry.run = std::move(run);
  }
  runs_ = std::move(entries);
  changed_.NotifyAll();
}

RunMoments::Moment RunMoments::Last(const std::string& name) const {
  const MutexLock lock(mu_);
  const auto found = runs_.find(name);
  return found == runs_.end() ? Moment() : found->second.moment;
}

std::pair<const std::string, RunMoments::Entry>* RunMoments::FirstDue() {
  const auto first = std::min_element(runs_.begin(), runs_.end(),
                                      [](const auto& a, const auto& b) { return a.second.next < b.second.next; });
  return first == runs_.end() ? nullptr : &*first;
}

void RunMoments::Work() {
  for (;;) {
    std::string name;
    Run run;
    {
      const MutexLock lock(mu_);
      auto* due = FirstDue();
      while (!ending_ && (due == nullptr || due->second.next > std::chrono::steady_clock::now())) {
        if (due == nullptr) {
          changed_.Wait(mu_);
        } else {
          changed_.WaitUntil(mu_, due->second.next);
        }
        due = FirstDue();
      }
      if (ending_) return;
      name = due->first;
      run = due->second.run;
    }
    Said said = Ask(run);
    const MutexLock lock(mu_);
    const auto found = runs_.find(name);
    if (found == runs_.end() || found->second.run.path != run.path) continue;
    Entry& entry = found->second;
    entry.next = std::chrono::steady_clock::now() + (said.failed ? kAskAgainAfterFailure : kAsk);
    if (entry.moment.number > 0 && *entry.moment.event == said.event) continue;
    entry.moment = {entry.moment.number + 1, std::make_shared<const std::string>(std::move(said.event))};
  }
}

}  // namespace tdock::trainer
