#include "dock/compat/mindspeed/profile.h"

#include <algorithm>
#include <cctype>
#include <limits>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "core/base/status.h"
#include "core/base/utf8.h"

namespace tdock {

absl::StatusOr<std::unique_ptr<MindSpeedDock>> MakeMindSpeedDock(std::shared_ptr<Dock> dock,
                                                                 const MindSpeedOptions& options) {
  return mindspeed::Profile::Make(std::move(dock), options);
}

absl::Status MindSpeedDock::PutExperience(const PaddedColumns& padded, const ExperienceIndexes& indexes,
                                          const PutOptions& options) {
  TDOCK_ASSIGN_OR_RETURN(const Batch rows, UnpadColumns(padded));
  return PutExperience(rows, indexes, options);
}

ExperienceIndexes ExperienceIndexes::Slice(size_t begin, size_t count) const {
  ExperienceIndexes part;
  const auto cut = [&](const auto& all) {
    const auto first = all.begin() + static_cast<ptrdiff_t>(begin);
    return std::remove_cvref_t<decltype(all)>(first, first + static_cast<ptrdiff_t>(count));
  };
  part.indexes = cut(indexes);
  if (!rows.empty()) part.rows = cut(rows);
  part.lease = lease;
  return part;
}

namespace mindspeed {
namespace {

// The dock's limit on the rows of one put.
constexpr int64_t kMaxRows = int64_t{1} << 24;
// The writer of puts in a dock without a consumer that puts.
constexpr char kPutter[] = "put_experience";

constexpr const char* kBalanced[] = {"ref_log_prob", "actor_log_prob", "reward_scores", "actor_train"};

std::string QuotedColumns(const std::vector<std::string>& columns) {
  return columns.empty() ? "none" : absl::StrJoin(columns, ", ");
}

absl::Status CheckOptions(const MindSpeedOptions& options) {
  const int64_t n = options.n_samples_per_prompt;
  if (options.prompts_num < 1 || n < 1 || options.prompts_num > kMaxRows / n) {
    return absl::InvalidArgumentError(absl::StrCat("prompts_num is ", options.prompts_num, " and n_samples_per_prompt ",
                                                   n, "; both must be at least 1, and ", "their product at most ",
                                                   kMaxRows));
  }
  if (options.max_age < 1) {
    return absl::InvalidArgumentError(absl::StrCat("max_age is ", options.max_age, "; it must be at least 1"));
  }
  if (options.max_age > 1 && (options.gbs_train < 1 || options.gbs_train > options.prompts_num)) {
    return absl::InvalidArgumentError(absl::StrCat("gbs_train is ", options.gbs_train,
                                                   "; with max_age above 1 it must be 1 to prompts_num, ",
                                                   options.prompts_num));
  }
  if (options.timeout < absl::ZeroDuration() || options.lease_duration <= options.timeout) {
    return absl::InvalidArgumentError(
        absl::StrCat("lease_duration is ", absl::FormatDuration(options.lease_duration), " and timeout ",
                     absl::FormatDuration(options.timeout),
                     "; a lease must last longer than a read may wait, and neither be negative"));
  }
  return absl::OkStatus();
}

std::optional<RowId> ConsumeRow(absl::string_view& text) {
  const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  RowId row = 0;
  if (!absl::SimpleAtoi(text.substr(0, digits), &row)) return std::nullopt;
  text.remove_prefix(digits);
  return row;
}

// True if a message mentions this row in a list, such as "Rows 1, 3" or "rows 1, 3 to 7 lack".
bool Lists(absl::string_view message, RowId row) {
  constexpr absl::string_view kRows = "ows ";
  for (size_t at = message.find(kRows); at != absl::string_view::npos; at = message.find(kRows, at + 1)) {
    absl::string_view list = message.substr(at + kRows.size());
    do {
      const std::optional<RowId> first = ConsumeRow(list);
      const std::optional<RowId> last = absl::ConsumePrefix(&list, " to ") ? ConsumeRow(list) : first;
      if (!first.has_value() || !last.has_value()) break;
      if (*first <= row && row <= *last) return true;
    } while (absl::ConsumePrefix(&list, ", "));
  }
  return false;
}

// Whether a message mentions this row.
bool Names(absl::string_view message, RowId row) {
  if (Lists(message, row)) return true;
  const std::string name = absl::StrCat("ow ", row);
  for (size_t at = message.find(name); at != absl::string_view::npos; at = message.find(name, at + 1)) {
    const size_t end = at + name.size();
    if (end == message.size() || std::isdigit(static_cast<unsigned char>(message[end])) == 0) return true;
  }
  return false;
}

}  // namespace

// ---- Construction.

Profile::Profile(std::shared_ptr<Dock> dock, const MindSpeedOptions& options, SamplingHook on_sampling)
    : dock_(std::move(dock)),
      options_(options),
      on_sampling_(std::move(on_sampling)),
      max_len_(options.prompts_num * options.n_samples_per_prompt),
      n_(options.n_samples_per_prompt),
      partial_rollout_(options.max_age > 1),
      clock_(options.clock == nullptr ? Clock::Real() : *options.clock) {
  const auto add_column = [&](const std::string& name) {
    if (std::find(columns_.begin(), columns_.end(), name) == columns_.end()) columns_.push_back(name);
  };
  for (const std::string& name : options.columns) add_column(name);
  for (const std::string& name : options.addition_columns) add_column(name);
  const auto add_consumer = [&](const MindSpeedConsumer& added) {
    const auto same = [&](const auto& consumer) { return consumer->options.name == added.name; };
    if (std::any_of(consumers_.begin(), consumers_.end(), same)) return;
    auto consumer = std::make_unique<Consumer>();
    consumer->options = added;
    if (!added.hand_out.has_value()) {
      consumer->options.hand_out = added.writes.empty() ? HandOut::kDone : HandOut::kLeased;
    }
    consumer->number = consumers_.size();
    consumer->resumes = partial_rollout_ && added.name == "actor_rollout";
    consumer->balances = std::find(std::begin(kBalanced), std::end(kBalanced), added.name) != std::end(kBalanced);
    consumers_.push_back(std::move(consumer));
  };
  for (const MindSpeedConsumer& consumer : options.consumers) add_consumer(consumer);
  for (const MindSpeedConsumer& consumer : options.addition_consumers) add_consumer(consumer);
  held_.resize(consumers_.size());
}

Profile::~Profile() {
  // Failures are ignored: no client can use the partition any more.
  if (made_partition_) dock_->DropPartition(options_.partition).IgnoreError();
}

absl::StatusOr<std::unique_ptr<Profile>> Profile::Make(std::shared_ptr<Dock> dock, const MindSpeedOptions& options,
                                                       SamplingHook on_sampling) {
  TDOCK_RETURN_IF_ERROR(CheckOptions(options));
  std::unique_ptr<Profile> profile(new Profile(std::move(dock), options, std::move(on_sampling)));
  TDOCK_RETURN_IF_ERROR(profile->Begin());
  return profile;
}

absl::Status Profile::Begin() {
  const std::string& name = options_.partition;
  TDOCK_ASSIGN_OR_RETURN(const std::vector<std::string> there, dock_->ListPartitions());
  if (std::find(there.begin(), there.end(), name) != there.end()) {
    return absl::AlreadyExistsError(
        absl::StrCat("there is a partition '", EscapeForMessage(name), "' already; a MindSpeedDock creates its own"));
  }
  for (const auto& consumer : consumers_) {
    TDOCK_RETURN_IF_ERROR(Annotate(CheckColumns(consumer->options.writes),
                                   absl::StrCat("consumer '", consumer->options.name, "' writes")));
    if (!consumer->resumes) continue;
    const std::vector<std::string>& writes = consumer->options.writes;
    const auto does_not_write = [&](const char* column) {
      return std::find(writes.begin(), writes.end(), column) == writes.end();
    };
    if (!consumer->leased() || does_not_write("responses") || does_not_write("response_length")) {
      return absl::InvalidArgumentError(
          "with max_age above 1, actor_rollout must be leased, so that it can be resumed, and must write responses and "
          "response_length");
    }
  }
  TDOCK_RETURN_IF_ERROR(dock_->CreatePartition({.name = name, .growing = true}));
  made_partition_ = true;
  TDOCK_RETURN_IF_ERROR(RegisterConsumers());
  Generation first;
  TDOCK_ASSIGN_OR_RETURN(first.rows, NewRows(max_len_));
  for (size_t i = 0; i < first.rows.size(); ++i) first.index_of[first.rows[i]] = static_cast<int64_t>(i);
  first.ages.resize(first.rows.size());
  MutexLock lock(mu_);
  now_ = {std::make_shared<const Generation>(std::move(first)),
          std::make_shared<const std::vector<bool>>(static_cast<size_t>(max_len_))};
  return absl::OkStatus();
}

absl::Status Profile::RegisterConsumers() {
  // Columns without a writer may be put by any consumer that holds a lease.
  std::vector<std::string> unclaimed = columns_;
  bool any_leased = false;
  for (const auto& consumer : consumers_) {
    any_leased |= consumer->leased();
    for (const std::string& name : consumer->options.writes) std::erase(unclaimed, name);
  }
  for (const auto& consumer : consumers_) {
    ConsumerOptions options{.name = consumer->options.name,
                            .writes = consumer->options.writes,
                            .lease_duration = options_.lease_duration,
                            .max_deliveries = std::numeric_limits<int32_t>::max()};
    if (consumer->leased()) options.writes.insert(options.writes.end(), unclaimed.begin(), unclaimed.end());
    if (consumer->resumes) options.reads_optional = {"responses", "response_length"};
    TDOCK_RETURN_IF_ERROR(dock_->RegisterConsumer(options_.partition, options));
  }
  // The dock knows a column once it was put, or a consumer names it; a read waits only for columns that it knows.
  if (any_leased) return absl::OkStatus();
  return dock_->RegisterConsumer(options_.partition, {.name = kPutter, .writes = unclaimed});
}

absl::StatusOr<std::vector<RowId>> Profile::NewRows(int64_t count) {
  TDOCK_ASSIGN_OR_RETURN(PutResult result, dock_->Put({.partition = options_.partition, .new_rows = count}));
  return std::move(result.rows);
}

// ---- Names and indexes in requests.

absl::StatusOr<Profile::Consumer*> Profile::FindConsumer(absl::string_view name) {
  std::vector<absl::string_view> names;
  for (const auto& consumer : consumers_) {
    if (consumer->options.name == name) return consumer.get();
    names.push_back(consumer->options.name);
  }
  return absl::NotFoundError(absl::StrCat("dock '", options_.partition, "' has no consumer '", EscapeForMessage(name),
                                          "'; it has ", names.empty() ? "none" : absl::StrJoin(names, ", ")));
}

absl::Status Profile::CheckColumns(const std::vector<std::string>& columns) const {
  for (const std::string& name : columns) {
    if (std::find(columns_.begin(), columns_.end(), name) != columns_.end()) continue;
    return absl::NotFoundError(
        absl::StrCat("dock '", options_.partition, "' has no column '", name, "'; it has ", QuotedColumns(columns_)));
  }
  return absl::OkStatus();
}

absl::Status Profile::CheckIndexes(const std::vector<int64_t>& indexes) const {
  if (indexes.empty()) return absl::InvalidArgumentError("name at least one index");
  for (const int64_t index : indexes) {
    if (index >= 0 && index < max_len_) continue;
    return absl::InvalidArgumentError(absl::StrCat("index ", index, " is out of range: dock '", options_.partition,
                                                   "' has the indexes 0 to ", max_len_ - 1));
  }
  return absl::OkStatus();
}

Profile::Snapshot Profile::Look() {
  MutexLock lock(mu_);
  return now_;
}

absl::StatusOr<std::vector<RowId>> Profile::Resolve(const ExperienceIndexes& indexes) {
  TDOCK_RETURN_IF_ERROR(CheckIndexes(indexes.indexes));
  const Snapshot snapshot = Look();
  if (!indexes.rows.empty()) {
    if (indexes.rows.size() != indexes.indexes.size()) {
      return absl::InvalidArgumentError(absl::StrCat("the indexes of a get have ", indexes.indexes.size(),
                                                     " indexes and ", indexes.rows.size(),
                                                     " rows; it must have as many"));
    }
    for (size_t i = 0; i < indexes.rows.size(); ++i) {
      if (snapshot.generation->index_of.contains(indexes.rows[i])) continue;
      return absl::NotFoundError(absl::StrCat("index ", indexes.indexes[i], " of dock '", options_.partition,
                                              "' was cleared since it was handed out"));
    }
    return indexes.rows;
  }
  std::vector<RowId> rows;
  for (const int64_t index : indexes.indexes) rows.push_back(snapshot.generation->rows[static_cast<size_t>(index)]);
  return rows;
}

absl::Status Profile::InIndexes(const absl::Status& status, std::span<const int64_t> indexes,
                                std::span<const RowId> rows) {
  if (status.ok()) return status;
  std::vector<std::string> meant;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (Names(status.message(), rows[i])) meant.push_back(absl::StrCat("row ", rows[i], " is index ", indexes[i]));
  }
  if (meant.empty()) return status;
  return absl::Status(status.code(), absl::StrCat(status.message(), " (", absl::StrJoin(meant, ", "), ")"));
}

// ---- Status.

absl::StatusOr<std::vector<bool>> Profile::Filter(const Generation& generation, const std::string& ready_for,
                                                  const std::vector<std::string>& having) {
  std::vector<bool> passed(generation.rows.size());
  ListRequest request{.partition = options_.partition, .ready_for = ready_for, .having = having, .limit = max_len_};
  for (;;) {
    TDOCK_ASSIGN_OR_RETURN(const ListResult page, dock_->List(request));
    for (const ListedRow& row : page.rows) {
      const auto it = generation.index_of.find(row.row);
      if (it != generation.index_of.end()) passed[static_cast<size_t>(it->second)] = true;
    }
    if (!page.next.has_value()) return passed;
    request.from = *page.next;
  }
}

absl::StatusOr<int64_t> Profile::CountConsumed(const Consumer& consumer) {
  TDOCK_ASSIGN_OR_RETURN(const ConsumerStatus status,
                         dock_->GetConsumerStatus(options_.partition, consumer.options.name));
  return status.leased + status.done;
}

void Profile::NoteChange() {
  {
    MutexLock lock(mu_);
    ++changes_;
  }
  changed_.NotifyAll();
}

}  // namespace mindspeed
}  // namespace tdock
