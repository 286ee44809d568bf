#include "dock/service/wire/request_codec.h"

#include "core/base/status.h"
#include "dock/service/wire/fields.h"

namespace tdock::service {

void Encode(const PartitionOptions& options, v1::PartitionOptions* message) {
  message->set_name(options.name);
  for (const ColumnSpec& spec : options.columns) Encode(spec, message->add_columns());
  message->set_growing(options.growing);
  message->set_group_size(options.group_size);
  Append(options.retain_for, message->mutable_retain_for());
  message->set_max_rows(options.max_rows);
  message->set_max_bytes(options.max_bytes);
  message->set_row_bytes(options.row_bytes);
  message->set_refuse_nan(options.refuse_nan);
}

absl::StatusOr<PartitionOptions> Decode(const v1::PartitionOptions& message) {
  PartitionOptions options{.name = message.name(),
                           .growing = message.growing(),
                           .group_size = message.group_size(),
                           .retain_for = Strings(message.retain_for()),
                           .max_rows = message.max_rows(),
                           .max_bytes = message.max_bytes(),
                           .row_bytes = message.row_bytes(),
                           .refuse_nan = message.refuse_nan()};
  for (const v1::ColumnSpec& column : message.columns()) {
    TDOCK_ASSIGN_OR_RETURN(ColumnSpec spec, Decode(column));
    options.columns.push_back(std::move(spec));
  }
  return options;
}

void Encode(absl::string_view partition, const ConsumerOptions& options, v1::RegisterConsumer* message) {
  message->set_partition(std::string(partition));
  message->set_name(options.name);
  Append(options.reads, message->mutable_reads());
  Append(options.reads_optional, message->mutable_reads_optional());
  Append(options.writes, message->mutable_writes());
  message->set_unit(static_cast<uint32_t>(options.unit));
  message->set_sampler(static_cast<uint32_t>(options.sampler));
  message->set_seed(options.seed);
  message->set_length_column(options.length_column);
  message->set_custom_sampler(options.custom_sampler);
  message->set_ranks(options.ranks);
  message->set_lease_duration(ToWire(options.lease_duration));
  message->set_max_deliveries(options.max_deliveries);
  message->set_max_version_lag(options.max_version_lag);
  message->set_stale(static_cast<uint32_t>(options.stale));
  message->set_at_most_once(options.at_most_once);
  message->set_checkpointed(options.checkpointed);
}

absl::StatusOr<ConsumerOptions> Decode(const v1::RegisterConsumer& message) {
  ConsumerOptions options{.name = message.name(),
                          .reads = Strings(message.reads()),
                          .reads_optional = Strings(message.reads_optional()),
                          .writes = Strings(message.writes()),
                          .seed = message.seed(),
                          .length_column = message.length_column(),
                          .custom_sampler = message.custom_sampler(),
                          .ranks = message.ranks(),
                          .lease_duration = DurationFromWire(message.lease_duration()),
                          .max_deliveries = message.max_deliveries(),
                          .max_version_lag = message.max_version_lag(),
                          .at_most_once = message.at_most_once(),
                          .checkpointed = message.checkpointed()};
  TDOCK_ASSIGN_OR_RETURN(options.unit, DecodeEnum("unit", message.unit(), Unit::kGroup));
  TDOCK_ASSIGN_OR_RETURN(options.sampler, DecodeEnum("sampler", message.sampler(), Sampler::kCustom));
  TDOCK_ASSIGN_OR_RETURN(options.stale, DecodeEnum("policy for what is too old", message.stale(), Stale::kDrop));
  return options;
}

void Encode(const PutRequest& request, absl::Time now, v1::Put* message) {
  message->set_partition(request.partition);
  message->set_has_frame(!request.batch.empty());
  message->set_new_rows(request.new_rows);
  Append(request.rows, message->mutable_rows());
  message->set_lease(request.lease);
  message->set_keep(request.keep);
  message->set_step(request.step);
  Append(request.groups, message->mutable_groups());
  message->set_group_size(request.group_size);
  Append(request.keys, message->mutable_keys());
  for (const Tags& tags : request.tags) Encode(tags, message->add_tags());
  message->set_partial(request.partial);
  Append(request.epochs, message->mutable_epochs());
  message->set_overwrite(request.overwrite);
  message->set_weights_version(request.weights_version);
  message->set_timeout(ToWire(request.deadline - now));
}

absl::StatusOr<PutRequest> Decode(const v1::Put& message, absl::Time now) {
  PutRequest request{.partition = message.partition(),
                     .new_rows = message.new_rows(),
                     .rows = Numbers<RowId>(message.rows()),
                     .lease = message.lease(),
                     .keep = message.keep(),
                     .step = message.step(),
                     .groups = Numbers<GroupId>(message.groups()),
                     .group_size = message.group_size(),
                     .keys = Strings(message.keys()),
                     .partial = message.partial(),
                     .epochs = Numbers<uint32_t>(message.epochs()),
                     .overwrite = message.overwrite(),
                     .weights_version = message.weights_version(),
                     .deadline = now + DurationFromWire(message.timeout())};
  for (const v1::Tags& tags : message.tags()) {
    TDOCK_ASSIGN_OR_RETURN(Tags decoded, Decode(tags));
    request.tags.push_back(std::move(decoded));
  }
  return request;
}

void Encode(const TakeRequest& request, absl::Time now, v1::Take* message) {
  message->set_partition(request.partition);
  message->set_consumer(request.consumer);
  message->set_min(request.min);
  message->set_max(request.max);
  message->set_rank(request.rank);
  Append(request.rows, message->mutable_rows());
  message->set_timeout(ToWire(request.deadline - now));
}

TakeRequest Decode(const v1::Take& message, absl::Time now) {
  return {.partition = message.partition(),
          .consumer = message.consumer(),
          .min = message.min(),
          .max = message.max(),
          .rank = message.rank(),
          .rows = Numbers<RowId>(message.rows()),
          .deadline = now + DurationFromWire(message.timeout())};
}

void Encode(const FetchRequest& request, absl::Time now, v1::Fetch* message) {
  message->set_partition(request.partition);
  Append(request.rows, message->mutable_rows());
  Append(request.columns, message->mutable_columns());
  message->set_timeout(ToWire(request.deadline - now));
}

FetchRequest Decode(const v1::Fetch& message, absl::Time now) {
  return {.partition = message.partition(),
          .rows = Numbers<RowId>(message.rows()),
          .columns = Strings(message.columns()),
          .deadline = now + DurationFromWire(message.timeout())};
}

void Encode(const LeaseRequest& request, v1::LeaseRows* message) {
  message->set_partition(request.partition);
  message->set_lease(request.lease);
  Append(request.rows, message->mutable_rows());
  message->set_step(request.step);
}

LeaseRequest Decode(const v1::LeaseRows& message) {
  return {.partition = message.partition(),
          .lease = message.lease(),
          .rows = Numbers<RowId>(message.rows()),
          .step = message.step()};
}

void Encode(const RequeueRequest& request, v1::Requeue* message) {
  message->set_partition(request.partition);
  message->set_consumer(request.consumer);
  Append(request.rows, message->mutable_rows());
}

RequeueRequest Decode(const v1::Requeue& message) {
  return {.partition = message.partition(), .consumer = message.consumer(), .rows = Numbers<RowId>(message.rows())};
}

void Encode(const StepRequest& request, v1::Step* message) {
  message->set_partition(request.partition);
  message->set_consumer(request.consumer);
  message->set_step(request.step);
  message->set_weights_version(request.weights_version);
}

StepRequest Decode(const v1::Step& message) {
  return {.partition = message.partition(),
          .consumer = message.consumer(),
          .step = message.step(),
          .weights_version = message.weights_version()};
}

void Encode(const ListRequest& request, v1::List* message) {
  message->set_partition(request.partition);
  Encode(request.tags, message->mutable_tags());
  message->set_ready_for(request.ready_for);
  Append(request.having, message->mutable_having());
  message->set_from(request.from);
  message->set_limit(request.limit);
}

absl::StatusOr<ListRequest> Decode(const v1::List& message) {
  ListRequest request{.partition = message.partition(),
                      .ready_for = message.ready_for(),
                      .having = Strings(message.having()),
                      .from = message.from(),
                      .limit = message.limit()};
  TDOCK_ASSIGN_OR_RETURN(request.tags, Decode(message.tags()));
  return request;
}

void Encode(const ClearRequest& request, v1::ClearRows* message) {
  message->set_partition(request.partition);
  Append(request.rows, message->mutable_rows());
  Append(request.groups, message->mutable_groups());
  Encode(request.tags, message->mutable_tags());
  message->set_everything(request.everything);
}

absl::StatusOr<ClearRequest> Decode(const v1::ClearRows& message) {
  ClearRequest request{.partition = message.partition(),
                       .rows = Numbers<RowId>(message.rows()),
                       .groups = Numbers<GroupId>(message.groups()),
                       .everything = message.everything()};
  TDOCK_ASSIGN_OR_RETURN(request.tags, Decode(message.tags()));
  return request;
}

void Encode(absl::string_view partition, v1::PartitionName* name) { name->set_partition(std::string(partition)); }

void Encode(absl::string_view partition, absl::string_view consumer, v1::ConsumerName* name) {
  name->set_partition(std::string(partition));
  name->set_consumer(std::string(consumer));
}

void Encode(absl::string_view partition, int64_t version, v1::PublishWeights* weights) {
  weights->set_partition(std::string(partition));
  weights->set_version(version);
}

void Encode(absl::string_view partition, std::span<const std::string> keys, v1::FindRows* find) {
  find->set_partition(std::string(partition));
  for (const std::string& key : keys) find->add_keys(key);
}

void Encode(absl::string_view partition, RowId row, v1::GetRow* get) {
  get->set_partition(std::string(partition));
  get->set_row(row);
}

}  // namespace tdock::service
