// A reference implementation of the docks with plain vectors and linear searches, which the profile is compared with.
// Columns hold rows of int64.
#pragma once

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace tdock::mindspeed {

class PlainDock {
 public:
  using Code = absl::StatusCode;
  using Row = std::vector<int64_t>;

  struct Consumer {
    std::set<std::string> writes;
    std::vector<bool> consumed;
    // The lease that a row is held under; 0: none.
    std::vector<int64_t> lease;
  };
  // The row at one index.
  struct Cells {
    int64_t id = 0;  // of its generation
    std::map<std::string, Row> ready = {};
    std::map<std::string, Row> unfinished = {};
    int64_t age = 0;
    bool shown = false;  // its group was complete at the last check
  };
  // The result of a get, as a caller keeps it.
  struct Handle {
    std::vector<int64_t> indexes;
    std::vector<int64_t> ids;
    std::string consumer;
    int64_t lease = 0;
  };
  struct Put {
    std::vector<std::pair<std::string, std::vector<Row>>> columns;  // rollout_completed not among them
    std::vector<int64_t> completed;
  };
  struct Get {
    std::string consumer;
    std::vector<std::string> columns;
    int64_t count = 0;
    bool groups = true;
    bool balance = false;
    bool target = false;
  };
  // The valid choices of a sampling: exactly `units` if it is determined, otherwise `count` of them in any order.
  struct Choice {
    Code code = Code::kOk;
    bool nothing = false;
    bool determined = true;
    int64_t count = 0;
    std::vector<int64_t> units = {};
  };

  PlainDock(int64_t prompts, int64_t n, bool partial, int64_t gbs)
      : prompts_(prompts), n_(n), partial_(partial), gbs_(gbs) {
    for (int64_t i = 0; i < prompts * n; ++i) cells.push_back({.id = next_id_++});
  }

  int64_t size() const { return static_cast<int64_t>(cells.size()); }
  int64_t n() const { return n_; }
  Consumer& AddConsumer(const std::string& name, std::set<std::string> writes) {
    return consumers[name] = {std::move(writes), std::vector<bool>(cells.size()), std::vector<int64_t>(cells.size())};
  }
  bool Rollout(const std::string& consumer) const { return partial_ && consumer == "actor_rollout"; }
  // Its own columns, and those that no consumer writes.
  bool MayWrite(const std::string& consumer, const std::string& column) const {
    if (consumers.at(consumer).writes.contains(column)) return true;
    return std::none_of(consumers.begin(), consumers.end(),
                        [&](const auto& named) { return named.second.writes.contains(column); });
  }
  int64_t Find(int64_t id) const {
    for (int64_t i = 0; i < size(); ++i) {
      if (At(i).id == id) return i;
    }
    return -1;
  }
  Cells& At(int64_t index) { return cells[static_cast<size_t>(index)]; }
  const Cells& At(int64_t index) const { return cells[static_cast<size_t>(index)]; }

  // ---- Puts.

  Code PutPlain(const std::vector<int64_t>& indexes, const Put& put) {
    if (Bad(indexes) || put.columns.front().second.size() != indexes.size()) return Code::kInvalidArgument;
    const bool responses = partial_ && Has(put, "responses");
    if (responses && put.completed.empty()) return Code::kInvalidArgument;
    const std::vector<size_t> last = Last(indexes);
    for (const size_t i : last) {
      if (responses && put.completed[i] == 0 && At(indexes[i]).ready.contains("responses")) return Code::kAlreadyExists;
    }
    for (const size_t i : last) Store(indexes[i], put, i, responses);
    for (auto& [name, consumer] : consumers) {
      if (Rollout(name) || !Writes(consumer, put)) continue;
      for (const int64_t index : indexes) consumer.lease[static_cast<size_t>(index)] = 0;
    }
    return Code::kOk;
  }

  Code PutThrough(const Handle& handle, const Put& put) {
    Consumer& consumer = consumers[handle.consumer];
    std::vector<int64_t> now;
    for (const int64_t id : handle.ids) now.push_back(Find(id));
    if (std::find(now.begin(), now.end(), -1) != now.end()) return Code::kNotFound;
    for (const int64_t index : now) {
      if (handle.lease != 0 && consumer.lease[static_cast<size_t>(index)] != handle.lease) {
        return Code::kFailedPrecondition;
      }
    }
    if (handle.lease == 0) return PutPlain(now, put);
    for (size_t i = 0; i < now.size(); ++i) {
      Store(now[i], put, i, Rollout(handle.consumer));
      consumer.lease[static_cast<size_t>(now[i])] = 0;
    }
    return Code::kOk;
  }

  // ---- Gets.

  Choice Sample(const Get& get) const {
    const Consumer& consumer = consumers.at(get.consumer);
    const bool rollout = Rollout(get.consumer);
    Choice choice;
    choice.code = Code::kInvalidArgument;
    if (rollout && get.groups) return choice;
    if (get.count < 1 || get.count > size() || (!partial_ && size() % get.count != 0)) return choice;
    if (get.groups && get.count % n_ != 0) return choice;
    choice.code = Code::kOk;
    choice.nothing = true;
    const int64_t unit = get.groups ? n_ : 1;
    const int64_t taken = std::count(consumer.consumed.begin(), consumer.consumed.end(), true);
    if (partial_ && get.groups && taken >= gbs_ * n_) return choice;
    std::vector<int64_t> usable;
    for (int64_t first = 0; first < size(); first += unit) {
      bool all = true;
      for (int64_t i = first; i < first + unit; ++i) all = all && Usable(consumer, get, i);
      if (all) usable.push_back(first);
    }
    const size_t wanted = static_cast<size_t>(get.count / unit);
    if (usable.empty() || (usable.size() < wanted && !rollout)) return choice;
    choice.nothing = false;
    choice.count = static_cast<int64_t>(std::min(wanted, usable.size()));
    choice.units = usable;
    if (rollout || (partial_ && get.groups)) {
      choice.units.resize(static_cast<size_t>(choice.count));
      return choice;
    }
    const std::set<std::string> balanced = {"ref_log_prob", "actor_log_prob", "reward_scores", "actor_train"};
    const bool balance = get.balance && balanced.contains(get.consumer) && usable.size() % wanted == 0;
    if (balance && usable.size() == wanted) return choice;
    if (balance || get.target) {
      std::vector<int64_t> lengths;
      for (const int64_t first : usable) {
        lengths.push_back(0);
        for (int64_t i = first; i < first + unit; ++i) {
          for (const char* column : {"prompt_length", "response_length"}) {
            const auto it = At(i).ready.find(column);
            if (it == At(i).ready.end()) return {.code = Code::kFailedPrecondition, .units = {}};
            lengths.back() += it->second.front();
          }
        }
      }
      if (balance) {
        choice.units = Balanced(usable, lengths, wanted);
        return choice;
      }
    }
    choice.determined = false;
    return choice;
  }

  // The rows were handed out, under a lease if it is not 0.
  void HandOut(const std::string& name, const std::vector<int64_t>& indexes, int64_t lease) {
    Consumer& consumer = consumers[name];
    for (const int64_t index : indexes) {
      const size_t i = static_cast<size_t>(index);
      if (!consumer.consumed[i]) consumer.lease[i] = lease;
      consumer.consumed[i] = true;
    }
  }

  Code Named(const Get& get, const std::vector<int64_t>& indexes) const {
    if (Rollout(get.consumer) && get.groups) return Code::kInvalidArgument;
    if (Bad(indexes)) return Code::kInvalidArgument;
    if (Rollout(get.consumer)) {
      if (Last(indexes).size() < indexes.size()) return Code::kInvalidArgument;
      for (const int64_t index : indexes) {
        if (consumers.at(get.consumer).consumed[static_cast<size_t>(index)]) return Code::kFailedPrecondition;
      }
    }
    for (const int64_t index : indexes) {
      if (!Ready(get, index)) return Code::kDeadlineExceeded;
    }
    return Code::kOk;
  }

  // Of a row that was handed out to the consumer.
  Row Expected(const std::string& consumer, const std::string& column, int64_t index) const {
    const Cells& at = At(index);
    if (Rollout(consumer) && Resumed(column)) {
      const auto it = at.unfinished.find(column);
      if (it != at.unfinished.end()) return it->second;
      return column == "responses" ? Row() : Row{0};
    }
    return at.ready.at(column);
  }

  // ---- The rest.

  Code EndLease(const Handle& handle, bool complete) {
    Consumer& consumer = consumers[handle.consumer];
    for (const int64_t id : handle.ids) {
      if (Find(id) < 0) return Code::kNotFound;
    }
    for (const int64_t id : handle.ids) {
      if (consumer.lease[static_cast<size_t>(Find(id))] != handle.lease) return Code::kFailedPrecondition;
    }
    for (const int64_t id : handle.ids) {
      const size_t i = static_cast<size_t>(Find(id));
      consumer.lease[i] = 0;
      consumer.consumed[i] = complete;
    }
    return Code::kOk;
  }

  void LeasesEnd() {
    for (auto& [name, consumer] : consumers) {
      for (size_t i = 0; i < consumer.lease.size(); ++i) {
        if (consumer.lease[i] != 0) consumer.consumed[i] = false;
        consumer.lease[i] = 0;
      }
    }
  }

  bool AllConsumed(const std::string& name) {
    const Consumer& consumer = consumers.at(name);
    const int64_t consumed = std::count(consumer.consumed.begin(), consumer.consumed.end(), true);
    if (!partial_) return consumed == size();
    if (name != "actor_rollout") return consumed >= gbs_ * n_;
    int64_t complete = 0;
    for (int64_t first = 0; first < size(); first += n_) {
      bool all = true;
      for (int64_t i = first; i < first + n_; ++i) all = all && At(i).ready.contains("responses");
      for (int64_t i = first; i < first + n_; ++i) At(i).shown = all;
      complete += all ? 1 : 0;
    }
    return complete >= gbs_;
  }

  void Clear(const std::string& name) {
    if (!partial_) {
      for (int64_t i = 0; i < size(); ++i) ClearIndex(i);
      return;
    }
    const std::vector<bool> trained = consumers.at(name).consumed;
    if (std::find(trained.begin(), trained.end(), true) == trained.end()) return;
    for (int64_t i = 0; i < size(); ++i) {
      if (trained[static_cast<size_t>(i)]) {
        ClearIndex(i);
        At(i).age = -1;
      } else if (At(i).ready.contains("input_ids")) {
        ++At(i).age;
      }
    }
    std::vector<int64_t> order;
    // One age after another, from the oldest.
    for (int64_t age = 1'000'000; age >= -1; age = Below(age)) {
      for (int64_t group = 0; group < prompts_; ++group) {
        if (AgeOf(group) == age) order.push_back(group);
      }
    }
    const PlainDock old = *this;
    for (size_t to = 0; to < order.size(); ++to) {
      for (int64_t k = 0; k < n_; ++k) {
        const int64_t from_index = order[to] * n_ + k, to_index = static_cast<int64_t>(to) * n_ + k;
        At(to_index) = old.At(from_index);
        At(to_index).age = std::max<int64_t>(old.AgeOf(order[to]), 0);
        for (auto& [consumer_name, consumer] : consumers) {
          const Consumer& was = old.consumers.at(consumer_name);
          consumer.consumed[static_cast<size_t>(to_index)] = was.consumed[static_cast<size_t>(from_index)];
          consumer.lease[static_cast<size_t>(to_index)] = was.lease[static_cast<size_t>(from_index)];
        }
      }
    }
  }

  void ClearIndex(int64_t index) {
    At(index) = {.id = next_id_++};
    for (auto& [name, consumer] : consumers) {
      consumer.consumed[static_cast<size_t>(index)] = false;
      consumer.lease[static_cast<size_t>(index)] = 0;
    }
  }

  bool Bad(const std::vector<int64_t>& indexes) const {
    return indexes.empty() ||
           std::any_of(indexes.begin(), indexes.end(), [&](int64_t i) { return i < 0 || i >= size(); });
  }
  bool Ready(const Get& get, int64_t index) const {
    return std::all_of(get.columns.begin(), get.columns.end(), [&](const std::string& column) {
      return (Rollout(get.consumer) && Resumed(column)) || At(index).ready.contains(column);
    });
  }

  std::vector<Cells> cells;
  std::map<std::string, Consumer> consumers;

 private:
  static bool Resumed(const std::string& column) { return column == "responses" || column == "response_length"; }
  static bool Has(const Put& put, const std::string& name) {
    return std::any_of(put.columns.begin(), put.columns.end(),
                       [&](const auto& column) { return column.first == name; });
  }
  static bool Writes(const Consumer& consumer, const Put& put) {
    return std::any_of(put.columns.begin(), put.columns.end(),
                       [&](const auto& column) { return consumer.writes.contains(column.first); });
  }
  // The last position of each index.
  static std::vector<size_t> Last(const std::vector<int64_t>& indexes) {
    std::vector<size_t> last;
    for (size_t i = 0; i < indexes.size(); ++i) {
      const auto after = indexes.begin() + static_cast<ptrdiff_t>(i) + 1;
      if (std::find(after, indexes.end(), indexes[i]) == indexes.end()) last.push_back(i);
    }
    return last;
  }

  void Store(int64_t index, const Put& put, size_t position, bool responses) {
    const bool finished = !responses || put.completed[position] == 1;
    for (const auto& [column, rows] : put.columns) {
      if (!finished && Resumed(column)) {
        At(index).unfinished[column] = rows[position];
      } else {
        At(index).ready[column] = rows[position];
      }
    }
    if (!responses) return;
    Consumer& rollout = consumers["actor_rollout"];
    rollout.consumed[static_cast<size_t>(index)] = finished;
    rollout.lease[static_cast<size_t>(index)] = 0;
  }

  bool Usable(const Consumer& consumer, const Get& get, int64_t index) const {
    if (consumer.consumed[static_cast<size_t>(index)] || !Ready(get, index)) return false;
    return !partial_ || Rollout(get.consumer) || At(index).shown;
  }

  // Longest first, of equal lengths the later; each to the open set with the least sum, then the least members, then
  // the least number. The set that fills up first.
  static std::vector<int64_t> Balanced(const std::vector<int64_t>& units, std::vector<int64_t> lengths, size_t size) {
    std::vector<std::vector<int64_t>> sets(units.size() / size);
    std::vector<int64_t> sums(sets.size());
    for (;;) {
      size_t longest = 0;
      for (size_t i = 0; i < lengths.size(); ++i) {
        if (lengths[i] >= lengths[longest]) longest = i;
      }
      size_t lightest = sets.size();
      for (size_t set = 0; set < sets.size(); ++set) {
        if (sets[set].size() == size) continue;
        if (lightest == sets.size() || sums[set] < sums[lightest] ||
            (sums[set] == sums[lightest] && sets[set].size() < sets[lightest].size())) {
          lightest = set;
        }
      }
      sets[lightest].push_back(units[longest]);
      sums[lightest] += lengths[longest];
      lengths[longest] = -1;
      if (sets[lightest].size() < size) continue;
      std::sort(sets[lightest].begin(), sets[lightest].end());
      return sets[lightest];
    }
  }

  int64_t AgeOf(int64_t group) const {
    int64_t age = -1;
    for (int64_t i = group * n_; i < (group + 1) * n_; ++i) age = std::max(age, At(i).age);
    return age;
  }
  // The next lower age that some group has.
  int64_t Below(int64_t age) const {
    int64_t below = -2;
    for (int64_t group = 0; group < prompts_; ++group) {
      if (AgeOf(group) < age) below = std::max(below, AgeOf(group));
    }
    return below;
  }

  int64_t prompts_;
  int64_t n_;
  bool partial_;
  int64_t gbs_;
  int64_t next_id_ = 0;
};

}  // namespace tdock::mindspeed
