// Random calls on the profile and on its plain restatement: they must do the same. Where the choice is random, the
// profile's must be a legal one, and the restatement is told which it was.
#include "core/base/rng.h"
#include "dock/compat/mindspeed/testing/fixture.h"
#include "dock/compat/mindspeed/testing/plain_dock.h"

namespace tdock::mindspeed {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kDocks = 10;
#else
constexpr int kDocks = 200;
#endif
constexpr int kSteps = 500;

const Names kColumns = {"prompts", "prompt_length", "responses", "response_length", "input_ids", "rm_scores"};

class Differential : public MindSpeedTest {
 protected:
  void Begin(uint64_t seed) {
    rng_ = Rng(seed);
    const int64_t prompts = Between(1, 6), n = Between(1, 3), gbs = Between(1, prompts);
    partial_ = Chance(2);
    MindSpeedOptions options = GrpoDock(prompts, n);
    options.max_age = partial_ ? 3 : 1;
    options.gbs_train = gbs;
    options.seed = seed;
    dock_.reset();
    Make(options);
    plain_.emplace(prompts, n, partial_, gbs);
    for (const MindSpeedConsumer& consumer : options.consumers) {
      plain_->AddConsumer(consumer.name, {consumer.writes.begin(), consumer.writes.end()});
    }
    handles_.clear();
    plain_handles_.clear();
    cursor_ = 0;
    metrics_.clear();
  }

  int64_t Between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(rng_.Below(static_cast<uint64_t>(high - low + 1)));
  }
  // Once in so many times.
  bool Chance(int64_t times) { return Between(1, times) == 1; }
  template <class T>
  const T& Any(const std::vector<T>& items) {
    return items[rng_.Below(items.size())];
  }

  // Mostly different ones that are there.
  Ints SomeIndexes() {
    Ints indexes;
    for (int64_t i = 0; i < plain_->size(); ++i) {
      if (Chance(2)) indexes.push_back(i);
    }
    rng_.Shuffle(std::span(indexes));
    if (Chance(8) && !indexes.empty()) indexes.push_back(Any(indexes));
    if (Chance(40)) indexes.push_back(Any(Ints{-1, -2, plain_->size()}));
    return indexes;
  }
  Names SomeColumns() {
    Names columns;
    for (const std::string& name : kColumns) {
      if (Chance(3)) columns.push_back(name);
    }
    if (columns.empty()) columns.push_back(Any(kColumns));
    return columns;
  }
  // Rows for so many indexes: an answer with partial rollout comes as a whole, with its state.
  // For a lease, of columns that its consumer may write.
  PlainDock::Put SomePut(size_t rows, bool answer, const std::string& leased_to = "") {
    PlainDock::Put put;
    Names columns = {"responses", "response_length", "input_ids"};
    if (!answer) columns = SomeColumns();
    if (partial_ && !answer) std::erase_if(columns, [](const auto& name) { return name.starts_with("response"); });
    if (!leased_to.empty()) {
      std::erase_if(columns, [&](const auto& name) { return !plain_->MayWrite(leased_to, name); });
    }
    if (columns.empty()) columns = {"prompts"};
    for (const std::string& name : columns) {
      std::vector<PlainDock::Row> values;
      for (size_t i = 0; i < rows; ++i) {
        values.push_back({name.ends_with("_length") ? Between(0, 5) : ++next_value_});
        for (int64_t more = Between(0, 2); more > 0 && !name.ends_with("_length"); --more) {
          values.back().push_back(++next_value_);
        }
      }
      put.columns.emplace_back(name, std::move(values));
    }
    for (size_t i = 0; answer && i < rows; ++i) put.completed.push_back(Between(0, 1));
    return put;
  }
  static Batch BatchOf(const PlainDock::Put& put) {
    Batch batch;
    for (const auto& [name, rows] : put.columns) {
      Ints flat;
      for (const auto& row : rows) flat.push_back(row.front());
      EXPECT_EQ(batch.Add(name, name.ends_with("_length") ? Column::FromValues<int64_t>(flat, {1})
                                                          : Column::FromRows<int64_t>(rows)),
                absl::OkStatus());
    }
    if (!put.completed.empty()) {
      EXPECT_EQ(batch.Add("rollout_completed", Column::FromValues<int64_t>(put.completed)), absl::OkStatus());
    }
    return batch;
  }

  void StepPut() {
    const Ints indexes = SomeIndexes();
    size_t rows = indexes.size();
    if (Chance(40)) rows += 1;
    const PlainDock::Put put = SomePut(rows, partial_ && Chance(3));
    const Code expected = plain_->PutPlain(indexes, put);
    ASSERT_EQ(dock_->PutExperience(BatchOf(put), indexes).code(), expected);
    if (expected == Code::kAlreadyExists) ++seen_["unfinished after complete"];
  }

  void StepPutThroughHandle() {
    if (handles_.empty()) return;
    const size_t which = rng_.Below(handles_.size());
    const PlainDock::Handle& handle = plain_handles_[which];
    const PlainDock::Put put =
        SomePut(handle.ids.size(), plain_->Rollout(handle.consumer), handle.lease == 0 ? "" : handle.consumer);
    const Code expected = plain_->PutThrough(handle, put);
    ASSERT_EQ(dock_->PutExperience(BatchOf(put), handles_[which]).code(), expected);
    if (expected == Code::kOk) ++seen_["put through a handle"];
    if (expected == Code::kNotFound) ++seen_["put to cleared rows"];
    if (expected == Code::kFailedPrecondition) ++seen_["put under a lease that is over"];
    Forget(which);
  }
  void StepEndLease() {
    if (handles_.empty()) return;
    const size_t which = rng_.Below(handles_.size());
    const PlainDock::Handle& handle = plain_handles_[which];
    // What is done without a response is for nobody to see.
    const bool complete = !plain_->Rollout(handle.consumer) && Chance(2);
    if (handle.lease == 0) return;
    const absl::Status status =
        complete ? dock_->Complete(handle.consumer, handles_[which]) : dock_->Release(handle.consumer, handles_[which]);
    ASSERT_EQ(status.code(), plain_->EndLease(handle, complete)) << status;
    Forget(which);
  }
  void Forget(size_t which) {
    if (Chance(5)) return;
    handles_.erase(handles_.begin() + static_cast<ptrdiff_t>(which));
    plain_handles_.erase(plain_handles_.begin() + static_cast<ptrdiff_t>(which));
  }

  PlainDock::Get SomeGet() {
    PlainDock::Get get;
    get.consumer = Any(Names{"actor_rollout", "actor_rollout", "rule_reward", "ref_log_prob", "actor_train"});
    get.columns = SomeColumns();
    get.groups = plain_->Rollout(get.consumer) ? Chance(20) : Chance(2);
    get.balance = Chance(2);
    get.target = Chance(4);
    return get;
  }
  GetOptions OptionsOf(const PlainDock::Get& get) {
    GetOptions options{.dp_size = Between(1, 3), .get_n_samples = get.groups};
    options.use_batch_seqlen_balance = get.balance;
    if (get.target) options.target_seq_len = 4;
    return options;
  }

  void StepSample() {
    PlainDock::Get get = SomeGet();
    get.count = Between(0, plain_->size() + 1);
    GetOptions options = OptionsOf(get);
    options.experience_count = get.count;
    const PlainDock::Choice choice = plain_->Sample(get);
    const auto got = dock_->GetExperience(get.consumer, get.columns, options);
    ASSERT_EQ(got.status().code(), choice.code) << got.status();
    if (!got.ok()) return;
    ASSERT_EQ(got->has_value(), !choice.nothing);
    ++seen_[choice.nothing ? "nothing yet" : choice.determined ? "determined" : "random"];
    if (!choice.nothing && choice.determined && !partial_) ++seen_["balanced"];
    if (!choice.nothing && partial_ && !plain_->Rollout(get.consumer)) ++seen_["from complete groups"];
    if (choice.nothing) return;
    const Ints& indexes = (*got)->indexes.indexes;
    ASSERT_NO_FATAL_FAILURE(CheckChoice(get, choice, indexes));
    const int64_t rows = static_cast<int64_t>(indexes.size());
    const bool pads = plain_->Rollout(get.consumer) && rows < get.count && rows % options.dp_size != 0;
    if (pads) ++seen_["padded"];
    ASSERT_EQ((*got)->indexes.padding_rows, pads ? options.dp_size - rows % options.dp_size : 0);
    ASSERT_NO_FATAL_FAILURE(CheckHandOut(get, **got, /*named=*/false));
  }

  void CheckChoice(const PlainDock::Get& get, const PlainDock::Choice& choice, const Ints& indexes) {
    const int64_t unit = get.groups ? static_cast<int64_t>(plain_->size() / prompts()) : 1;
    ASSERT_EQ(static_cast<int64_t>(indexes.size()), choice.count * unit);
    Ints units;
    for (size_t i = 0; i < indexes.size(); i += static_cast<size_t>(unit)) {
      units.push_back(indexes[i]);
      for (int64_t k = 0; k < unit; ++k) ASSERT_EQ(indexes[i + static_cast<size_t>(k)], indexes[i] + k);
    }
    if (choice.determined) {
      ASSERT_EQ(units, choice.units);
      return;
    }
    ASSERT_EQ(std::set<int64_t>(units.begin(), units.end()).size(), units.size());
    for (const int64_t chosen : units) ASSERT_THAT(choice.units, testing::Contains(chosen));
  }
  int64_t prompts() const { return static_cast<int64_t>(plain_->size() / n()); }
  int64_t n() const { return plain_->n(); }

  void StepNamed() {
    const PlainDock::Get get = SomeGet();
    GetOptions options = OptionsOf(get);
    const Ints indexes = SomeIndexes();
    options.indexes = indexes;
    const auto got = dock_->GetExperience(get.consumer, get.columns, options);
    ASSERT_EQ(got.status().code(), plain_->Named(get, indexes)) << got.status();
    if (!got.ok()) return;
    ASSERT_TRUE(got->has_value());
    ASSERT_EQ((*got)->indexes.indexes, indexes);
    ASSERT_NO_FATAL_FAILURE(CheckHandOut(get, **got, /*named=*/true));
  }

  void CheckHandOut(const PlainDock::Get& get, const Experience& got, bool named) {
    const Ints& indexes = got.indexes.indexes;
    const bool leased = !plain_->consumers.at(get.consumer).writes.empty();
    const int64_t lease = leased ? ++next_lease_ : 0;
    plain_->HandOut(get.consumer, indexes, lease);
    // A get by indexes has a lease if it was handed all of them.
    const std::vector<int64_t>& leases = plain_->consumers.at(get.consumer).lease;
    const bool all = std::all_of(indexes.begin(), indexes.end(),
                                 [&](int64_t index) { return leases[static_cast<size_t>(index)] == lease; });
    PlainDock::Handle handle{
        .indexes = indexes, .ids = {}, .consumer = get.consumer, .lease = named && !all ? 0 : lease};
    for (const int64_t index : indexes) handle.ids.push_back(plain_->At(index).id);
    ASSERT_EQ(got.batch.rows(), static_cast<int64_t>(indexes.size()) + got.indexes.padding_rows);
    for (int64_t i = 0; i < got.batch.rows(); ++i) {
      const int64_t index = indexes[std::min(static_cast<size_t>(i), indexes.size() - 1)];
      for (const std::string& column : get.columns) {
        ASSERT_EQ(RowOf(got.batch, column, i), plain_->Expected(get.consumer, column, index)) << column;
      }
      if (!plain_->Rollout(get.consumer)) continue;
      if (plain_->At(index).age > 0) ++seen_["aged"];
      if (!plain_->At(index).unfinished.empty()) ++seen_["resumed"];
      ASSERT_EQ((*got.batch.Values<int32_t>("age"))[static_cast<size_t>(i)], plain_->At(index).age);
    }
    ASSERT_EQ(got.batch.Find("age") != nullptr, plain_->Rollout(get.consumer));
    // Handles of rows that are named twice cannot be put through as they are.
    if (std::set<int64_t>(indexes.begin(), indexes.end()).size() < indexes.size()) return;
    handles_.push_back(got.indexes);
    plain_handles_.push_back(handle);
  }
  static PlainDock::Row RowOf(const Batch& batch, const std::string& column, int64_t row) {
    const auto values = batch.Row<int64_t>(column, row);
    EXPECT_EQ(values.status(), absl::OkStatus());
    return values.ok() ? PlainDock::Row(values->begin(), values->end()) : PlainDock::Row();
  }

  void StepClear() {
    if (Chance(2)) {
      const std::string consumer = Any(Names{"actor_train", "rule_reward"});
      ASSERT_EQ(dock_->Clear(consumer), absl::OkStatus());
      plain_->Clear(consumer);
      cursor_ = 0;
      metrics_.clear();
      return;
    }
    const Ints indexes = SomeIndexes();
    ASSERT_EQ(dock_->ClearIndexes(indexes).code(), plain_->Bad(indexes) ? Code::kInvalidArgument : Code::kOk);
    if (plain_->Bad(indexes)) return;
    for (const int64_t index : indexes) plain_->ClearIndex(index);
  }

  void StepSmall() {
    const int64_t count = Between(1, 4);
    Ints expected;
    for (; cursor_ < plain_->size() && static_cast<int64_t>(expected.size()) < count; ++cursor_) {
      expected.push_back(cursor_);
    }
    const auto prefetched = dock_->PrefetchRequestIndex(count);
    ASSERT_EQ(prefetched.status(), absl::OkStatus());
    ASSERT_EQ(prefetched->value_or(Ints()), expected);
    const std::string key = Any(Names{"loss", "score"});
    const bool cumulate = Chance(2);
    if (!cumulate) metrics_[key].clear();
    metrics_[key].push_back(static_cast<double>(count));
    dock_->UpdateMetrics(key, static_cast<double>(count), cumulate);
    ASSERT_EQ(dock_->GetMetrics(), metrics_);
  }

  void CheckConsumers() {
    for (auto& [name, consumer] : plain_->consumers) ASSERT_EQ(AllConsumed(name), plain_->AllConsumed(name)) << name;
  }
  void CheckEverything() {
    const auto ready = dock_->GetExperienceStatus();
    const auto consumed = dock_->GetConsumerStatus();
    const auto data = dock_->GetExperienceData();
    ASSERT_TRUE(ready.ok() && consumed.ok() && data.ok());
    int64_t incomplete = 0;
    for (int64_t i = 0; i < plain_->size(); ++i) {
      const auto& cells = plain_->At(i).ready;
      for (const std::string& column : kColumns) {
        ASSERT_EQ(ready->at(column)[static_cast<size_t>(i)], cells.contains(column)) << column << " of " << i;
      }
      incomplete += static_cast<int64_t>(cells.contains("prompts")) - static_cast<int64_t>(cells.contains("responses"));
    }
    for (const auto& [column, cells] : *data) {
      for (size_t i = 0; i < cells.indexes.size(); ++i) {
        const auto row = cells.column.Row<int64_t>(static_cast<int64_t>(i));
        ASSERT_EQ(PlainDock::Row(row->begin(), row->end()), plain_->At(cells.indexes[i]).ready.at(column));
      }
    }
    for (const auto& [name, consumer] : plain_->consumers) ASSERT_EQ(consumed->at(name), consumer.consumed) << name;
    ASSERT_EQ(*dock_->GetIncompleteResponseNum(), incomplete);
    ASSERT_EQ(core_->GetStatus("train")->rows, plain_->size());
  }

  void Step() {
    const int64_t kind = Between(1, 100);
    if (kind <= 30) return StepPut();
    if (kind <= 45) return StepPutThroughHandle();
    if (kind <= 75) return StepSample();
    if (kind <= 83) return StepNamed();
    if (kind <= 86) return StepEndLease();
    if (kind <= 89) return StepClear();
    if (kind <= 92) return StepSmall();
    if (kind <= 97) return CheckConsumers();
    if (kind <= 99) return CheckEverything();
    clock_.Advance(absl::Hours(1));
    plain_->LeasesEnd();
  }

  Rng rng_{0};
  bool partial_ = false;
  std::optional<PlainDock> plain_;
  // The same gets, as each of the two remembers them.
  std::vector<ExperienceIndexes> handles_;
  std::vector<PlainDock::Handle> plain_handles_;
  int64_t next_value_ = 0;
  int64_t next_lease_ = 0;
  int64_t cursor_ = 0;
  std::map<std::string, std::vector<double>> metrics_;
  // How often something came up that the test is about.
  std::map<std::string, int> seen_;
};

TEST_F(Differential, DoesWhatThePlainRestatementDoes) {
  for (uint64_t seed = 1; seed <= kDocks; ++seed) {
    Begin(seed);
    for (int step = 0; step < kSteps; ++step) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << ", step " << step);
      Step();
      if (HasFatalFailure()) return;
    }
    ASSERT_NO_FATAL_FAILURE(CheckEverything()) << "seed " << seed;
  }
  for (const char* what :
       {"put through a handle", "put to cleared rows", "put under a lease that is over", "unfinished after complete",
        "nothing yet", "determined", "random", "balanced", "from complete groups", "padded", "aged", "resumed"}) {
    EXPECT_GT(seen_[what], kDocks) << what;
  }
}

}  // namespace
}  // namespace tdock::mindspeed
