"""The dialect `dsv41` on xDSL: types, ops, verifier, interpreter and cost rules."""
