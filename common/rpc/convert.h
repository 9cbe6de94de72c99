// Between wire messages and the values the code computes with.
// Thread safety: pure functions.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/request/guided_params.h"
#include "common/request/sampling_params.h"
#include "tandem/v1/client.pb.h"
#include "tandem/v1/common.pb.h"

namespace tandem::rpc {

// Fills defaults for absent fields; does not validate ranges (request::Validate does).
request::SamplingParams FromWire(const v1::SamplingParams& wire);
request::StopParams FromWire(const v1::StopParams& wire);
v1::SamplingParams ToWire(const request::SamplingParams& params);
v1::StopParams ToWire(const request::StopParams& params);
request::GuidedParams FromWire(const v1::GuidedDecoding& wire);
v1::GuidedDecoding ToWire(const request::GuidedParams& params);
v1::FinishReason ToWire(request::FinishReason reason);
request::FinishReason FromWire(v1::FinishReason reason);

v1::StatusProto ToWire(const absl::Status& status);
absl::Status FromWire(const v1::StatusProto& status);

}  // namespace tandem::rpc
