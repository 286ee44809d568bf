// Requests to a dock as messages, and back.
//
// Encode fills an empty message. Decode fails with InvalidArgument for what cannot be a request; the dock decides
// whether the request is valid. Deadlines are sent as the remaining time, by the clock of each side.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "tdock.pb.h"
#include "tdock/options.h"
#include "tdock/requests.h"

namespace tdock::service {

void Encode(const PartitionOptions& options, v1::PartitionOptions* message);
absl::StatusOr<PartitionOptions> Decode(const v1::PartitionOptions& message);

void Encode(absl::string_view partition, const ConsumerOptions& options, v1::RegisterConsumer* message);
// Without the partition.
absl::StatusOr<ConsumerOptions> Decode(const v1::RegisterConsumer& message);

// Without the batch.
void Encode(const PutRequest& request, absl::Time now, v1::Put* message);
absl::StatusOr<PutRequest> Decode(const v1::Put& message, absl::Time now);

void Encode(const TakeRequest& request, absl::Time now, v1::Take* message);
TakeRequest Decode(const v1::Take& message, absl::Time now);

void Encode(const FetchRequest& request, absl::Time now, v1::Fetch* message);
FetchRequest Decode(const v1::Fetch& message, absl::Time now);

void Encode(const LeaseRequest& request, v1::LeaseRows* message);
LeaseRequest Decode(const v1::LeaseRows& message);

void Encode(const RequeueRequest& request, v1::Requeue* message);
RequeueRequest Decode(const v1::Requeue& message);

void Encode(const StepRequest& request, v1::Step* message);
StepRequest Decode(const v1::Step& message);

void Encode(const ListRequest& request, v1::List* message);
absl::StatusOr<ListRequest> Decode(const v1::List& message);

void Encode(const ClearRequest& request, v1::ClearRows* message);
absl::StatusOr<ClearRequest> Decode(const v1::ClearRows& message);

// Requests that consist of names and numbers.
inline void Encode(v1::Nothing*) {}
void Encode(absl::string_view partition, v1::PartitionName* name);
void Encode(absl::string_view partition, absl::string_view consumer, v1::ConsumerName* name);
void Encode(absl::string_view partition, int64_t version, v1::PublishWeights* weights);
void Encode(absl::string_view partition, std::span<const std::string> keys, v1::FindRows* find);
void Encode(absl::string_view partition, RowId row, v1::GetRow* get);

}  // namespace tdock::service
