// For tests: who watches the dock of a run, and counts what it was trained on.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/base/env.h"
#include "tdock/dock.h"
#include "tdock/verbs.h"
#include "trainer/stages/columns.h"

namespace tdock::trainer {

template <class V, class... Verbs>
inline constexpr bool kIsOneOf = (std::is_same_v<V, Verbs> || ...);

// A dock that calls `look` after each call that may have changed rows, and `forget` before it loses a partition.
class WatchedDock final : public Dock {
 public:
  // Of such a call.
  enum class Moment { kBefore, kDone, kSeen };
  struct Watcher {
    std::function<void(Dock&)> look;
    std::function<void()> forget;
    std::function<void(Moment)> during = [](Moment) {};
    std::function<void()> taken = [] {};  // by the thread that has got rows
  };
  WatchedDock(std::unique_ptr<Dock> dock, Watcher watcher) : dock_(std::move(dock)), watcher_(std::move(watcher)) {}
  ~WatchedDock() override { watcher_.forget(); }
  WatchedDock(const WatchedDock&) = delete;
  WatchedDock& operator=(const WatchedDock&) = delete;

  void Start(const AnyCall& call) override {
    VisitVerb(call.verb(), [&]<class V>() { call.template Reply<V>(Answer(V(), call.template request<V>())); });
  }

 private:
  // Rows that go are seen while they are still there: no other call comes between.
  template <class Call>
  std::invoke_result_t<Call> Looked(const Call& call) {
    const std::lock_guard lock(mu_);
    watcher_.during(Moment::kBefore);
    std::invoke_result_t<Call> result = call();
    watcher_.during(Moment::kDone);
    watcher_.look(*dock_);
    watcher_.during(Moment::kSeen);
    return result;
  }
  template <class V>
  ResultOf<V> Answer(V, const typename V::Request& request) {
    constexpr bool kChangesRows =
        kIsOneOf<V, verbs::Put, verbs::Fill, verbs::Complete, verbs::Release, verbs::Drop, verbs::Requeue,
                 verbs::Commit, verbs::Rollback, verbs::Clear, verbs::DropConsumer, verbs::ImportPartition>;
    const auto ask = [&] { return Ask<V>(*dock_, request); };
    return kChangesRows ? Looked(ask) : ask();
  }
  absl::Status Answer(verbs::DropPartition, const PartitionRequest& request) {
    const std::lock_guard lock(mu_);
    watcher_.forget();
    return dock_->DropPartition(request.partition);
  }
  // What was done before it has been seen.
  absl::StatusOr<ExportedPartition> Answer(verbs::ExportPartition, const PartitionRequest& request) {
    const std::lock_guard lock(mu_);
    return Ask<verbs::ExportPartition>(*dock_, request);
  }
  // Waits without the lock.
  absl::StatusOr<Taken> Answer(verbs::Take, const TakeRequest& request) {
    absl::StatusOr<Taken> taken = dock_->Take(request);
    if (!taken.ok()) return taken;
    watcher_.taken();
    return Looked([&] { return std::move(taken); });
  }

  std::mutex mu_;
  const std::unique_ptr<Dock> dock_;
  const Watcher watcher_;
};

// Counts what became of each sample, from nothing but what the dock shows: which rows there are, and their states for
// the consumer that trains. A row that is gone after that consumer had it was trained on; any other that is gone, and
// whose group is not on another partition, was dropped. Where a run goes on from a checkpoint, groups appear on the
// dock for a second time: what had come of them belongs to a history that was given up. The docks may be used by
// several threads; what it has counted is read after them.
class Observer {
 public:
  struct Options {
    std::string trains = "actor";
    std::string prompt = kPrompt;  // the column
    // A file that gets what was seen before the call returns that did it, and begins with what it holds: so it goes on
    // where another process was killed. Empty: none.
    std::string record = {};
    std::function<void(WatchedDock::Moment)> during = [](WatchedDock::Moment) {};  // a call
    std::function<void()> taken = [] {};                                           // by the thread that has got rows
  };
  explicit Observer(Options options) : options_(std::move(options)) {
    if (!options_.record.empty()) OpenRecord();
  }
  ~Observer() {
    if (record_ >= 0) ::close(record_);
  }
  Observer(const Observer&) = delete;
  Observer& operator=(const Observer&) = delete;

  struct Sample {
    std::vector<int32_t> prompt;
    int64_t trained = 0, dropped = 0;  // rows
    bool operator==(const Sample&) const = default;
  };
  // Each a prompt group, in the order in which they were fed.
  const std::map<GroupId, Sample>& samples() const { return samples_; }
  // How many samples had been trained on in histories that were given up.
  int64_t given_up() const { return given_up_; }

  std::unique_ptr<Dock> Watch(std::unique_ptr<Dock> dock) {
    return std::make_unique<WatchedDock>(std::move(dock),
                                         WatchedDock::Watcher{.look = [this](Dock& changed) { Look(changed); },
                                                              .forget = [this] { rows_.clear(); },
                                                              .during = options_.during,
                                                              .taken = options_.taken});
  }

 private:
  struct Seen {
    GroupId group;
    bool trained_on;  // the consumer that trains has it, or is done with it
  };
  using SeenRows = std::map<std::pair<std::string, RowId>, Seen>;  // of each partition

  void Look(Dock& dock) {
    SeenRows now;
    const auto partitions = dock.ListPartitions();
    ASSERT_TRUE(partitions.ok()) << partitions.status();
    std::set<GroupId> present, appeared;
    for (const std::string& partition : *partitions) {
      for (const ListedRow& row : RowsOf(dock, partition)) {
        present.insert(row.group);
        now[{partition, row.row}] = {row.group, IsTrainedOn(dock, partition, row.row)};
        if (!rows_.contains({partition, row.row})) NoteNew(dock, partition, row, appeared);
      }
    }
    for (const auto& [row, seen] : rows_) {
      if (now.contains(row)) continue;
      if (seen.trained_on) {
        Note({"trained", absl::StrCat(seen.group)});
      } else if (!present.contains(seen.group)) {
        Note({"dropped", absl::StrCat(seen.group)});
      }
    }
    rows_ = std::move(now);
    WriteNotes();
  }

  // Counts what is in a line of the record: "new", a group and the tokens of its prompt; "trained" or "dropped" and the
  // group of a row.
  void Note(const std::vector<std::string>& words) {
    GroupId group = 0;
    ASSERT_TRUE(words.size() >= 2 && absl::SimpleAtoi(words[1], &group)) << absl::StrJoin(words, " ");
    Sample& sample = samples_[group];
    if (words[0] == "new") {
      if (sample.trained > 0) ++given_up_;
      sample = {};
      for (const std::string& token : std::span(words).subspan(2)) sample.prompt.push_back(std::stoi(token));
    } else {
      ASSERT_FALSE(sample.prompt.empty()) << "group " << group << " was never seen on a dock";
      ++(words[0] == "trained" ? sample.trained : sample.dropped);
    }
    if (record_ >= 0) absl::StrAppend(&notes_, absl::StrJoin(words, " "), "\n");
  }

  // In one write: a process that is killed has written all or nothing, but for a last line that is not whole.
  void WriteNotes() {
    if (record_ < 0 || notes_.empty()) return;
    EXPECT_EQ(::write(record_, notes_.data(), notes_.size()), std::ssize(notes_)) << options_.record;
    notes_.clear();
  }

  void OpenRecord() {
    std::string lines;
    if (Env::Real().Exists(options_.record)) lines = *Env::Real().ReadFile(options_.record);
    lines.resize(lines.find_last_of('\n') + 1);  // of a call that has not returned
    for (const absl::string_view line : absl::StrSplit(lines, '\n', absl::SkipEmpty())) {
      Note(absl::StrSplit(line, ' '));
    }
    record_ = ::open(options_.record.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    ASSERT_GE(record_, 0) << options_.record;
    ASSERT_EQ(::ftruncate(record_, std::ssize(lines)), 0);
  }

  static std::vector<ListedRow> RowsOf(Dock& dock, const std::string& partition) {
    std::vector<ListedRow> rows;
    for (ListRequest request{.partition = partition};;) {
      const auto page = dock.List(request);
      EXPECT_TRUE(page.ok()) << page.status();
      if (!page.ok()) return rows;
      rows.insert(rows.end(), page->rows.begin(), page->rows.end());
      if (!page->next) return rows;
      request.from = *page->next;
    }
  }

  bool IsTrainedOn(Dock& dock, const std::string& partition, RowId row) const {
    const auto status = dock.GetRowStatus(partition, row);
    EXPECT_TRUE(status.ok()) << status.status();
    if (!status.ok()) return false;
    return std::any_of(status->consumers.begin(), status->consumers.end(), [&](const RowConsumerStatus& consumer) {
      return consumer.consumer == options_.trains &&
             (consumer.state == DeliveryState::kLeased || consumer.state == DeliveryState::kDone);
    });
  }

  // A row that was not there before.
  void NoteNew(Dock& dock, const std::string& partition, const ListedRow& row, std::set<GroupId>& appeared) {
    const auto cells = dock.Fetch({.partition = partition, .rows = {row.row}, .columns = {options_.prompt}});
    ASSERT_TRUE(cells.ok()) << cells.status();
    const auto tokens = cells->Get<int32_t>(0, options_.prompt);
    ASSERT_TRUE(tokens.ok()) << tokens.status();
    const std::vector<int32_t> prompt(tokens->begin(), tokens->end());
    if (appeared.insert(row.group).second) {
      std::vector<std::string> words = {"new", absl::StrCat(row.group)};
      for (const int32_t token : prompt) words.push_back(absl::StrCat(token));
      Note(words);
    }
    EXPECT_EQ(samples_[row.group].prompt, prompt) << "rows of a group have the same prompt";
  }

  const Options options_;
  int record_ = -1;
  std::string notes_;  // that are not written yet
  SeenRows rows_;      // as they were when it last looked
  std::map<GroupId, Sample> samples_;
  int64_t given_up_ = 0;
};

}  // namespace tdock::trainer
