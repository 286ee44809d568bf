#include "dock/service/wire/fields.h"

#include <limits>
#include <span>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace tdock::service {

int64_t ToWire(absl::Duration duration) { return absl::ToInt64Nanoseconds(duration); }

absl::Duration DurationFromWire(int64_t nanoseconds) {
  if (nanoseconds == std::numeric_limits<int64_t>::max()) return absl::InfiniteDuration();
  if (nanoseconds == std::numeric_limits<int64_t>::min()) return -absl::InfiniteDuration();
  return absl::Nanoseconds(nanoseconds);
}

absl::Status CheckEnum(absl::string_view what, uint32_t value, uint32_t last) {
  if (value <= last) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("there is no ", what, " ", value, "; there are 0 to ", last));
}

void Encode(const ColumnSpec& spec, v1::ColumnSpec* message) {
  message->set_name(spec.name);
  message->set_kind(static_cast<uint32_t>(spec.type.kind));
  message->set_dtype(static_cast<uint32_t>(spec.type.dtype));
  Append(spec.type.row_shape, message->mutable_row_shape());
  // The digits beyond the limit are dropped, but not the fact that there were some.
  if (spec.type.row_shape.too_long()) message->add_row_shape(1);
}

absl::StatusOr<ColumnSpec> Decode(const v1::ColumnSpec& message) {
  ColumnSpec spec{.name = message.name()};
  TDOCK_ASSIGN_OR_RETURN(spec.type.kind, DecodeEnum("kind of column", message.kind(), ColumnKind::kBytes));
  TDOCK_ASSIGN_OR_RETURN(spec.type.dtype, DecodeEnum("element type", message.dtype(), DType::kF8E5M2));
  spec.type.row_shape = Shape(std::span(message.row_shape().data(), static_cast<size_t>(message.row_shape_size())));
  return spec;
}

void Encode(const Tags& tags, v1::Tags* message) {
  for (const auto& [name, value] : tags) {
    message->add_names(name);
    message->add_values(value);
  }
}

absl::StatusOr<Tags> Decode(const v1::Tags& message) {
  if (message.names_size() != message.values_size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(message.names_size(), " names of tags, but ", message.values_size(), " values"));
  }
  Tags tags;
  for (int i = 0; i < message.names_size(); ++i) tags.insert_or_assign(message.names(i), message.values(i));
  return tags;
}

}  // namespace tdock::service
