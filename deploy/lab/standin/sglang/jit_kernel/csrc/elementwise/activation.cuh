// A file to find: releases link jit_kernel/ to the base package instead of copying it.
