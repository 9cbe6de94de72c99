// tandem-router: places requests on prefill and decode nodes and streams their answers.
#include "router/process/router_process.h"

int main(int argc, char** argv) { return tandem::router::RouterMain(argc, argv); }
