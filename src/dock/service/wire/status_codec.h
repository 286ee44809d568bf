// The status of a dock as messages, and back. Conventions as in request_codec.h.
#pragma once

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tdock.pb.h"
#include "tdock/requests.h"

namespace tdock::service {

// The error of a call. A code that absl does not know becomes Unknown.
void Encode(const absl::Status& status, v1::Reply* reply);
absl::Status StatusOf(const v1::Reply& reply);

void Encode(const ListResult& result, v1::ListResult* message);
absl::StatusOr<ListResult> Decode(const v1::ListResult& message);

void Encode(const ConsumerStatus& status, v1::ConsumerStatus* message);
ConsumerStatus Decode(const v1::ConsumerStatus& message);

void Encode(const PartitionStatus& status, v1::PartitionStatus* message);
absl::StatusOr<PartitionStatus> Decode(const v1::PartitionStatus& message);

// `now` is each side's own: the times of a lease are sent as durations.
void Encode(const RowStatus& status, absl::Time now, v1::RowStatus* message);
absl::StatusOr<RowStatus> Decode(const v1::RowStatus& message, absl::Time now);

}  // namespace tdock::service
