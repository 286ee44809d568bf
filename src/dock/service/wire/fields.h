// Conversions of single message fields.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "dock/service/wire/messages.h"

namespace tdock::service {

// Nanoseconds on the wire: the largest int64 means never, the smallest the infinite past.
int64_t ToWire(absl::Duration duration);
absl::Duration DurationFromWire(int64_t nanoseconds);

// The error of a call. A code that absl does not know becomes Unknown.
void Encode(const absl::Status& status, message::Reply* reply);
absl::Status StatusOf(const message::Reply& reply);

}  // namespace tdock::service
