#include "tdock/requests.h"

namespace tdock {

absl::string_view CellStateName(CellState state) {
  switch (state) {
    case CellState::kEmpty:
      return "empty";
    case CellState::kPartial:
      return "partial";
    case CellState::kReady:
      return "ready";
  }
  return "unknown";
}

absl::string_view DeliveryStateName(DeliveryState state) {
  switch (state) {
    case DeliveryState::kWaiting:
      return "waiting";
    case DeliveryState::kReady:
      return "ready";
    case DeliveryState::kLeased:
      return "leased";
    case DeliveryState::kQuarantined:
      return "quarantined";
    case DeliveryState::kDone:
      return "done";
  }
  return "unknown";
}

}  // namespace tdock
