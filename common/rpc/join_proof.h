// How a node proves to a router that it holds the fleet's secret, without showing it: a tag over a
// challenge that the router draws for each stream and over the registration. What was overheard on
// one stream is of no use on another.
// Thread safety: pure functions.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "tandem/v1/fleet.pb.h"

namespace tandem::rpc {

// Metadata that a router's stream begins with.
inline constexpr char kChallengeKey[] = "tandem-challenge-bin";

std::string NewChallenge();
// Sets registration.proof.
void ProveJoin(absl::string_view secret, absl::string_view challenge,
               v1::Registration& registration);
// kUnauthenticated, naming the node, when the proof is not there or not right.
absl::Status CheckJoinProof(absl::string_view secret, absl::string_view challenge,
                            const v1::Registration& registration);

}  // namespace tandem::rpc
