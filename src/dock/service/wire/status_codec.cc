#include "dock/service/wire/status_codec.h"

#include "core/base/status.h"
#include "dock/service/wire/fields.h"

namespace tdock::service {

void Encode(const absl::Status& status, v1::Reply* reply) {
  reply->set_code(static_cast<uint32_t>(status.code()));
  reply->set_message(std::string(status.message()));
}

absl::Status StatusOf(const v1::Reply& reply) {
  if (reply.code() == 0) return absl::OkStatus();
  constexpr auto kLast = static_cast<uint32_t>(absl::StatusCode::kUnauthenticated);
  return absl::Status(reply.code() > kLast ? absl::StatusCode::kUnknown : static_cast<absl::StatusCode>(reply.code()),
                      reply.message());
}

void Encode(const ListResult& result, v1::ListResult* message) {
  for (const ListedRow& row : result.rows) {
    v1::ListedRow* const listed = message->add_rows();
    listed->set_row(row.row);
    listed->set_group(row.group);
    listed->set_key(row.key);
    if (!row.tags.empty()) Encode(row.tags, listed->mutable_tags());
    listed->set_age(row.age);
    listed->set_epoch(row.epoch);
  }
  if (result.next.has_value()) message->set_next(*result.next);
}

absl::StatusOr<ListResult> Decode(const v1::ListResult& message) {
  ListResult result;
  result.rows.reserve(static_cast<size_t>(message.rows_size()));
  for (const v1::ListedRow& listed : message.rows()) {
    TDOCK_ASSIGN_OR_RETURN(Tags tags, Decode(listed.tags()));
    result.rows.push_back({.row = listed.row(),
                           .group = listed.group(),
                           .key = listed.key(),
                           .tags = std::move(tags),
                           .age = listed.age(),
                           .epoch = listed.epoch()});
  }
  if (message.has_next()) result.next = message.next();
  return result;
}

void Encode(const ConsumerStatus& status, v1::ConsumerStatus* message) {
  message->set_waiting(status.waiting);
  message->set_ready(status.ready);
  message->set_leased(status.leased);
  message->set_quarantined(status.quarantined);
  message->set_done(status.done);
  message->set_uncommitted(status.uncommitted);
  message->set_committed_step(status.committed_step);
  message->set_takeable(status.takeable);
  message->set_completed(status.completed);
  message->set_expired(status.expired);
  message->set_unfinished(status.unfinished);
  message->set_sent_back(status.sent_back);
  message->set_stale_dropped(status.stale_dropped);
  message->set_reset(status.reset);
}

ConsumerStatus Decode(const v1::ConsumerStatus& message) {
  return {.waiting = message.waiting(),
          .ready = message.ready(),
          .leased = message.leased(),
          .quarantined = message.quarantined(),
          .done = message.done(),
          .uncommitted = message.uncommitted(),
          .committed_step = message.committed_step(),
          .takeable = message.takeable(),
          .completed = message.completed(),
          .expired = message.expired(),
          .unfinished = message.unfinished(),
          .sent_back = message.sent_back(),
          .stale_dropped = message.stale_dropped(),
          .reset = message.reset()};
}

void Encode(const PartitionStatus& status, v1::PartitionStatus* message) {
  message->set_sealed(status.sealed);
  message->set_weights_version(status.weights_version);
  message->set_rows(status.rows);
  message->set_groups(status.groups);
  message->set_incomplete_groups(status.incomplete_groups);
  Append(status.retain_for, message->mutable_retain_for());
  message->set_held_bytes(status.held_bytes);
  for (const ColumnStatus& column : status.columns) {
    v1::ColumnStatus* const added = message->add_columns();
    Encode(ColumnSpec{column.name, column.type}, added->mutable_spec());
    added->set_typed(column.typed);
    added->set_ready_cells(column.ready_cells);
  }
  for (const NamedConsumerStatus& consumer : status.consumers) {
    v1::NamedConsumerStatus* const added = message->add_consumers();
    added->set_name(consumer.name);
    Encode(consumer.status, added->mutable_status());
  }
}

absl::StatusOr<PartitionStatus> Decode(const v1::PartitionStatus& message) {
  PartitionStatus status{.sealed = message.sealed(),
                         .weights_version = message.weights_version(),
                         .rows = message.rows(),
                         .groups = message.groups(),
                         .incomplete_groups = message.incomplete_groups(),
                         .retain_for = Strings(message.retain_for()),
                         .held_bytes = message.held_bytes()};
  for (const v1::ColumnStatus& column : message.columns()) {
    TDOCK_ASSIGN_OR_RETURN(ColumnSpec spec, Decode(column.spec()));
    status.columns.push_back({.name = std::move(spec.name),
                              .typed = column.typed(),
                              .type = std::move(spec.type),
                              .ready_cells = column.ready_cells()});
  }
  for (const v1::NamedConsumerStatus& consumer : message.consumers()) {
    status.consumers.push_back({.name = consumer.name(), .status = Decode(consumer.status())});
  }
  return status;
}

void Encode(const RowStatus& status, absl::Time now, v1::RowStatus* message) {
  message->set_row(status.row);
  message->set_group(status.group);
  message->set_key(status.key);
  if (!status.tags.empty()) Encode(status.tags, message->mutable_tags());
  message->set_age(status.age);
  message->set_epoch(status.epoch);
  for (const RowCellStatus& cell : status.cells) {
    v1::RowCellStatus* const added = message->add_cells();
    added->set_column(cell.column);
    added->set_state(static_cast<uint32_t>(cell.state));
    added->set_bytes(cell.bytes);
    added->set_weights_version(cell.weights_version);
    added->set_writer(cell.writer);
  }
  for (const RowConsumerStatus& consumer : status.consumers) {
    v1::RowConsumerStatus* const added = message->add_consumers();
    added->set_consumer(consumer.consumer);
    added->set_state(static_cast<uint32_t>(consumer.state));
    Append(consumer.missing, added->mutable_missing());
    added->set_redeliveries(consumer.redeliveries);
    added->set_lease(consumer.lease);
    if (consumer.lease != kNoLease) {
      added->set_held_for(ToWire(now - consumer.taken));
      added->set_remaining(ToWire(consumer.expires - now));
    }
    added->set_uncommitted_step(consumer.uncommitted_step);
  }
}

absl::StatusOr<RowStatus> Decode(const v1::RowStatus& message, absl::Time now) {
  RowStatus status{.row = message.row(),
                   .group = message.group(),
                   .key = message.key(),
                   .age = message.age(),
                   .epoch = message.epoch()};
  TDOCK_ASSIGN_OR_RETURN(status.tags, Decode(message.tags()));
  for (const v1::RowCellStatus& cell : message.cells()) {
    TDOCK_ASSIGN_OR_RETURN(const CellState state, DecodeEnum("cell state", cell.state(), CellState::kReady));
    status.cells.push_back({.column = cell.column(),
                            .state = state,
                            .bytes = cell.bytes(),
                            .weights_version = cell.weights_version(),
                            .writer = cell.writer()});
  }
  for (const v1::RowConsumerStatus& each : message.consumers()) {
    TDOCK_ASSIGN_OR_RETURN(const DeliveryState state, DecodeEnum("delivery state", each.state(), DeliveryState::kDone));
    RowConsumerStatus& consumer = status.consumers.emplace_back();
    consumer = {.consumer = each.consumer(),
                .state = state,
                .missing = Strings(each.missing()),
                .redeliveries = each.redeliveries(),
                .lease = each.lease(),
                .uncommitted_step = each.uncommitted_step()};
    if (consumer.lease == kNoLease) continue;
    consumer.taken = now - DurationFromWire(each.held_for());
    consumer.expires = now + DurationFromWire(each.remaining());
  }
  return status;
}

}  // namespace tdock::service
