// What reaches the router's core: from clients' calls, nodes' streams and other threads of the
// process. Whoever brings it takes the router's turn when that is free
// (docs/adr/0030-who-brings-a-message-takes-the-turn.md).
#pragma once

#include <google/protobuf/arena.h>

#include <functional>
#include <memory>
#include <variant>

#include "absl/status/status.h"
#include "common/base/strand.h"
#include "router/core/router_core.h"
#include "router/front_end/load_shedder.h"

namespace tandem::router {

class AnswerSession;

// Pushed late: what nodes say of requests that run goes before.
struct SubmitRequest {
  RequestInput input;
  std::shared_ptr<AnswerSession> session;
  LoadShedder::Place place;
};
// A client is gone, or its answer ended by the client side's own judgement.
struct SessionEnded {
  RequestId id;
  std::shared_ptr<AnswerSession> session;
  request::FinishReason reason = request::FinishReason::kAborted;
};
struct NodeRegistered {
  NodeKey node;
  v1::Registration registration;
};
// The message lies in the arena: a step's tokens for hundreds of sequences are thousands of small
// objects, made on one thread and ended on another.
struct NodeSpoke {
  NodeKey node;
  std::unique_ptr<google::protobuf::Arena> arena;
  const v1::NodeMessage* message;
};
struct NodeGone {
  NodeKey node;
  absl::Status why;
};
// Runs in the router's turn, with the core: for GetStatus, Abort and the like. Must not block.
struct CoreCall {
  std::function<void(RouterCore&, absl::Time now)> call;
};

using InboxItem =
    std::variant<SubmitRequest, SessionEnded, NodeRegistered, NodeSpoke, NodeGone, CoreCall>;
using Inbox = Strand<InboxItem>;

}  // namespace tandem::router
