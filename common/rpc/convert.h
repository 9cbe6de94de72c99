// Converts between wire messages and the values that the code computes with. FromWire and ToWire
// are inverse on values that request::Validate accepts. The fields of sampling and stop parameters
// are listed in common/rpc/wire_fields.h.
// Thread safety: pure functions. Errors: none; a wire value without a meaning becomes the default.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/request/guided_params.h"
#include "common/request/queue_order.h"
#include "common/request/sampling_params.h"
#include "tandem/v1/client.pb.h"
#include "tandem/v1/common.pb.h"
#include "tandem/v1/fleet.pb.h"

namespace tandem::rpc {

// An absent field leaves the member's default. Ranges are not checked: request::Validate does that.
// Lists of token ids and biases come out in ascending order.
request::SamplingParams FromWire(const v1::SamplingParams& wire);
request::StopParams FromWire(const v1::StopParams& wire);
v1::SamplingParams ToWire(const request::SamplingParams& params);
v1::StopParams ToWire(const request::StopParams& params);
request::GuidedParams FromWire(const v1::GuidedDecoding& wire);
v1::GuidedDecoding ToWire(const request::GuidedParams& params);
v1::FinishReason ToWire(request::FinishReason reason);
request::FinishReason FromWire(v1::FinishReason reason);

v1::QueueOrder ToWire(request::QueueOrder order);
request::QueueOrder FromWire(v1::QueueOrder order);

v1::StatusProto ToWire(const absl::Status& status);
absl::Status FromWire(const v1::StatusProto& status);

}  // namespace tandem::rpc
