#include "trainer/rollout_servers/weight_group.h"

#include <ATen/ATen.h>

#include <optional>
#include <utility>

#include "core/base/status.h"
#include "model/tensor_torch/convert.h"
#include "tdock/dtype.h"
#include "trainer/stages/guard.h"

namespace tdock::trainer {
namespace {

// A request whose answer comes once this process has done its part, and that part.
bool CallWhile(ServerUpdate& update, const WireCall& call, const SendOptions& options,
               const std::function<absl::Status(absl::Time deadline)>& work) {
  absl::Status worked;
  bool is_answered = false;
  const absl::Time deadline = options.PatienceOfRequest().deadline;
  options.tasks->ForEach(2, [&](size_t i) {
    if (i == 0) is_answered = update.Call(call);
    if (i == 1) worked = Guarded([&] { return work(deadline); });
  });
  return is_answered && (worked.ok() || update.Fail(worked));
}

// A group of its own for the server, which has joined it.
bool JoinGroup(const Recipient& recipient, const OpenWeightGroup& open_group, const SendOptions& options,
               ServerUpdate& update, Delivery& delivery) {
  if (!update.Call(RanksCall(recipient.kind))) return false;
  const auto ranks = recipient.client.Read(delivery.sent, ReadRanks(delivery.sent.body));
  if (!ranks.ok()) return false;
  // A group of a run that was killed, or of an update that failed, has the same name.
  recipient.client.Call(LeaveCall(recipient.kind), options.PatienceOfRequest()).status.IgnoreError();
  auto group = open_group(recipient.kind, *ranks);
  if (!group.ok()) return update.Fail(group.status());
  const bool has_joined = CallWhile(update, JoinCall(recipient.kind, (*group)->place()), options,
                                    [&](absl::Time deadline) { return (*group)->Join(deadline); });
  if (has_joined) recipient.link->group = *std::move(group);
  return has_joined;
}

void SendThroughGroup(const GroupWeights& weights, std::span<const at::Tensor> tensors, const Recipient& recipient,
                      const OpenWeightGroup& open_group, const SendOptions& options, Delivery& delivery) {
  const ServerKind kind = recipient.kind;
  std::unique_ptr<WeightGroup>& group = recipient.link->group;
  ServerUpdate update(recipient, options, delivery);
  if (group == nullptr && !JoinGroup(recipient, open_group, options, update, delivery)) return;
  const auto broadcast = [&](absl::Time deadline) -> absl::Status {
    for (const at::Tensor& tensor : tensors) TDOCK_RETURN_IF_ERROR(group->Broadcast(tensor, deadline));
    return absl::OkStatus();
  };
  const WireCall receive = ReceiveCall(kind, weights, recipient.version, !options.keep_cache);
  const bool is_there = update.Halt() && update.Call(BeginCall(kind)) &&
                        CallWhile(update, receive, options, broadcast) &&
                        update.Call(EndCall(kind, recipient.version)) && update.CompareLabel() && update.GoOn();
  if (!is_there) group.reset();
}

}  // namespace

Deliveries BroadcastWeights(const model::Decoder& decoder, std::span<const Recipient> recipients,
                            const OpenWeightGroup& open_group, const SendOptions& options) {
  Deliveries result;
  result.deliveries.resize(recipients.size());
  GroupWeights weights;
  std::vector<at::Tensor> tensors;
  const absl::Status listed = Guarded([&]() -> absl::Status {
    std::optional<model::Decoder> merged;
    if (decoder.lora()) merged.emplace(decoder.Merged());
    for (const auto& [name, tensor] : merged ? merged->NamedWeights() : decoder.NamedWeights()) {
      TDOCK_ASSIGN_OR_RETURN(const DType dtype, ToDType(tensor.scalar_type()));
      tensors.push_back(tensor.detach().contiguous());
      weights.names.push_back(name);
      weights.dtypes.emplace_back(Name(dtype));
      weights.shapes.push_back(tensor.sizes().vec());
      result.bytes += tensor.nbytes() * recipients.size();
    }
    return absl::OkStatus();
  });
  options.tasks->ForEach(recipients.size(), [&](size_t i) {
    Delivery& delivery = result.deliveries[i];
    if (!listed.ok()) {
      delivery.sent = {.status = listed, .trouble = Trouble::kFailed};
    } else {
      SendThroughGroup(weights, tensors, recipients[i], open_group, options, delivery);
    }
  });
  return result;
}

}  // namespace tdock::trainer
