// Package npmregistry writes the egress rule under which a jail's npm reaches
// the registry that this machine's npm is set up with: a public host as a rule,
// in some networks a mirror whose address a rule must name. Only the demo and
// test programs import it; it never talks to the registry itself.
package npmregistry
