// The core's strand: everything that reaches the core, from clients' calls, nodes' streams and
// other threads of the process. The pushing thread runs the core if no other thread does; otherwise
// the thread that runs it handles the item too
// (docs/adr/0030-the-pushing-thread-runs-the-core.md). Thread safety: any thread pushes;
// handlers run on the strand, one at a time. Owner: RouterServer.
#pragma once

#include <google/protobuf/arena.h>

#include <functional>
#include <memory>
#include <variant>

#include "absl/status/status.h"
#include "common/base/strand.h"
#include "router/core/request_input.h"
#include "router/fleet/node_key.h"
#include "router/front_end/load_shedder.h"
#include "tandem/v1/fleet.pb.h"

namespace tandem::router {

class AnswerSession;
class RouterCore;

// Pushed with the low priority class: nodes' messages about running requests go first.
struct SubmitRequest {
  RequestInput input;
  std::shared_ptr<AnswerSession> session;
  LoadShedder::Position position;
};
// The client is gone, or its front end ends the request.
struct SessionEnded {
  RequestId id;
  std::shared_ptr<AnswerSession> session;
  request::FinishReason reason = request::FinishReason::kAborted;
};
struct NodeRegistered {
  NodeKey node;
  v1::Registration registration;
};
// The message lies in the arena, because a step's tokens for hundreds of sequences are thousands of
// small objects, which one thread makes and another frees.
struct NodeSpoke {
  NodeKey node;
  std::unique_ptr<google::protobuf::Arena> arena;
  const v1::NodeMessage* message;
};
struct NodeGone {
  NodeKey node;
  absl::Status why;
};
// Runs `call` on the core's strand, for GetStatus, Abort and the like. Must not block.
struct CoreCall {
  std::function<void(RouterCore&, absl::Time now)> call;
};

using InboxItem =
    std::variant<SubmitRequest, SessionEnded, NodeRegistered, NodeSpoke, NodeGone, CoreCall>;
using Inbox = Strand<InboxItem>;

// What a caller gets whose item the inbox did not take: kUnavailable.
inline absl::Status InboxFull() {
  return absl::UnavailableError("the router's inbox is full, or the router is shutting down");
}

}  // namespace tandem::router
