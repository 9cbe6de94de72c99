// Thread safety: a call changes the whole process; main makes it before threads start.
#pragma once

namespace tandem {

// Lets this process have as many descriptors as the system allows it: connections and streams are
// sockets, and a small soft limit would be the first bound hit. Children inherit it.
void RaiseDescriptorLimit();

}  // namespace tandem
